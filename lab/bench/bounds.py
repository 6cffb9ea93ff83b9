"""Measure what the update bound and step clip add to a step, in processor time."""

from __future__ import annotations

import json
from typing import Annotated, Any

import torch
import typer

from lab.bench.rotation import Rotation
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.recipe import Recipe
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.update_bound import BoundUpdates
from rksp.watch.moment import Moment
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import train
from rksp.watch.training.loop import Beside

# A bound that no update reaches, and one that every update passes.
REACH = {"nothing scaled": 1e9, "everything scaled": 1e-6}


class _InTurn(Beside):
    """A companion whose update bound, which hangs on the optimizer, sleeps in others' turns."""

    def begin(self, moment: Moment) -> None:
        self._rouse(True)
        super().begin(moment)

    def bind(self, model: Any, optimizer: Any) -> None:
        super().bind(model, optimizer)
        self._rouse(False)

    def after_update(self, moment: Moment) -> None:
        super().after_update(moment)
        self._rouse(False)

    def _rouse(self, is_awake: bool) -> None:
        for one in self.interventions:
            for bound in getattr(one, "bounds", ()):
                bound.is_awake = is_awake


def cost(
    shape: dict[str, object],
    *,
    batch_size: int,
    length: int,
    rounds: int,
    optimizer: str,
    clip: bool,
) -> dict[str, object]:
    """Time bare and bound steps in turns, in CPU seconds of one thread, the least of `rounds`.

    Returns:
        Milliseconds of the bare step, and the share that each case adds.
    """
    kinds = (BoundUpdates, StepClip) if clip else (BoundUpdates,)
    acting = {f"{kind.name}, {said}": kind(delta=d) for kind in kinds for said, d in REACH.items()}
    companions = [Beside(), *(_InTurn(Watch([]), [one]) for one in acting.values())]
    recipe = Recipe(
        learning_rate=1e-4,
        optimizer=optimizer,
        max_steps=len(companions) * (rounds + 1),
        schedule="constant",
        batch_size=batch_size,
        sequence_length=length,
    )
    batch = make_task("bytes", length=length).batches(1, batch_size, seed=0)[0]
    model = build_member("gpt2", shape | {"max_position_embeddings": length}, seed=0)
    rotation = Rotation(companions)
    train(model, [batch] * recipe.max_steps, recipe, companion=rotation)
    bare, *bound = (min(rotation.seconds[i][1:]) for i in range(len(companions)))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": batch_size * length,
        "optimizer": optimizer,
        "ms": 1e3 * bare,
        "share": {name: s / bare - 1 for name, s in zip(acting, bound, strict=True)},
    }


def main(
    width: Annotated[int, typer.Option(help="Width; 768 is GPT-2's.")] = 768,
    depth: Annotated[int, typer.Option(help="Blocks.")] = 12,
    vocabulary: Annotated[int, typer.Option(help="Tokens that it knows.")] = 50257,
    batch_size: Annotated[int, typer.Option(help="Sequences a step.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens a sequence.")] = 512,
    rounds: Annotated[int, typer.Option(help="Timed steps of each kind.")] = 3,
    optimizer: Annotated[str, typer.Option(help="Optimizer.")] = "adamw",
    clip: Annotated[bool, typer.Option(help="Time step clip too.")] = True,
) -> None:
    """Print what the bounds add to a step of a GPT-2."""
    torch.set_num_threads(1)
    shape = {"hidden_size": width, "num_hidden_layers": depth, "vocab_size": vocabulary}
    shape |= {"num_attention_heads": max(1, width // 64), "tie_word_embeddings": True}
    found = cost(
        shape, batch_size=batch_size, length=length, rounds=rounds, optimizer=optimizer, clip=clip
    )
    typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
