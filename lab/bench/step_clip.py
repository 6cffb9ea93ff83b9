"""Measure what step clip adds to a step of GPT-2's size, in time and in memory."""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer

from lab.bench.rotation import Rotation
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.recipe import Recipe
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import train
from rksp.watch.training.loop import Beside

GPT2 = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50257,
    "tie_word_embeddings": True,
}
# A bound that no update reaches, and one that every update passes.
CASES = {"nothing scaled": 1e9, "everything scaled": 1e-6}


def cost(
    *, batch_size: int, length: int, rounds: int, shape: dict[str, object] | None = None
) -> dict:
    """Time bare and clipped steps in turns, in CPU seconds of one thread, the least of `rounds`.

    Returns:
        Milliseconds of the bare step, the share that each case adds, and the bytes of samples and
        of copies over those of the weights.
    """
    shape = (shape or GPT2) | {"max_position_embeddings": length}
    clips = {name: StepClip(delta=delta) for name, delta in CASES.items()}
    companions = [Beside(), *(Beside(Watch([]), [clip]) for clip in clips.values())]
    recipe = Recipe(
        learning_rate=1e-4,
        max_steps=len(companions) * (rounds + 1),
        schedule="constant",
        batch_size=batch_size,
        sequence_length=length,
    )
    batch = make_task("bytes", length=length).batches(1, batch_size, seed=0)[0]
    model = build_member("gpt2", shape, seed=0)
    rotation = Rotation(companions)
    train(model, [batch] * recipe.max_steps, recipe, companion=rotation)
    bare, *clipped = (min(rotation.seconds[i][1:]) for i in range(len(companions)))
    clip = next(iter(clips.values()))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    held = [t for use in clip._outputs.uses for _, x, y in use.sampled for t in (x, y)]
    held += list(clip._updates.copies.values())
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": batch_size * length,
        "ms": 1e3 * bare,
        "share": {name: s / bare - 1 for name, s in zip(CASES, clipped, strict=True)},
        "memory": sum(t.numel() * t.element_size() for t in held) / weights,
    }


def main(
    batch_size: Annotated[int, typer.Option(help="Sequences a step.")] = 4,
    length: Annotated[int, typer.Option(help="Tokens a sequence.")] = 512,
    rounds: Annotated[int, typer.Option(help="Timed steps of each kind.")] = 3,
) -> None:
    """Print what step clip adds to a step."""
    torch.set_num_threads(1)
    typer.echo(json.dumps(cost(batch_size=batch_size, length=length, rounds=rounds), indent=1))


if __name__ == "__main__":
    typer.run(main)
