"""Train the experiment `bounds`, one run a line, and print its tables: see `bounds.md`.

`python -m lab.experiments.bounds` appends to `results/bounds.jsonl`, in an order of which every
prefix is of use, and resumes there; `rksp reproduce shaping --stored` prints what the file holds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import torch

from lab.experiments.bound_rules import Bound, Lamb, StableAdamW
from lab.ladders.ladder import POLICY
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.recipe import Recipe
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.interventions.weights import QKNorm
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import run

ROWS = Path(__file__).parent / "results" / "bounds.jsonl"
CHOOSING, LEFT_OUT = ("gpt2", "llama", "qwen3"), ("mixtral", "gpt_neox", "olmo2")
_FIRST = {"gpt2": 4e-3, "llama": 7e-3, "qwen3": 1e-2, "mixtral": 4e-3, "gpt_neox": 1.5e-2}
_FIRST["olmo2"] = 3e-2
_PER_ADAM = {"adamw": 1.0, "muon": 1.0, "lion": 0.1}  # rates
_RATES = 7  # in factors of two, so that half the rate is the ladder's next
_LENGTH, _VOCABULARY = 16, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What a run differs in: a factor on the rate, fields of the recipe, or an intervention."""

    rate: float = 1.0
    recipe: Mapping[str, object] | None = None
    make: Callable[[], Intervention] | None = None
    only: str = ""  # the optimizer that it is made for


# In the order of their training: the baseline first, then what might win. The first of them are
# trained at both lengths of the choice before the others are at either.
_FIRST_ARMS = 6
_JUDGED = ("none", "shrink", "step_clip", "third")  # first, where nothing is chosen on
_AGAIN = ("switch", "least")  # what a second choice is made among, over 1,200 steps
_THIRD = ("none", "weights_0.05", "shrink")  # a third, over 1,200 and 2,400
ARMS: Mapping[str, Arm] = {
    "none": Arm(),
    "weights_0.05": Arm(make=partial(Bound, rule="weights")),
    "step_clip": Arm(make=StepClip),
    "features_0.05": Arm(make=partial(Bound, rule="weights", least=1.0)),
    "third": Arm(rate=1 / 3),
    "shrink": Arm(make=partial(Bound, rule="shrink")),
    "least": Arm(make=partial(Bound, rule="least")),
    "weights_0.02": Arm(make=partial(Bound, rule="weights", delta=0.02)),
    "features_0.02": Arm(make=partial(Bound, rule="weights", delta=0.02, least=1.0)),
    "start": Arm(make=partial(Bound, rule="start")),
    "switch": Arm(make=partial(Bound, rule="switch")),
    "matrices_0.05": Arm(make=partial(Bound, rule="matrices")),
    "window": Arm(make=partial(Bound, rule="window")),
    "warmup_x4": Arm(recipe={"warmup": 4}),
    "clip_0.1": Arm(recipe={"max_grad_norm": 0.1}),
    "stable_adamw": Arm(make=StableAdamW, only="adamw"),
    "lamb": Arm(make=Lamb, only="adamw"),
    "qk_norm": Arm(make=QKNorm),
    "muon": Arm(recipe={"optimizer": "muon"}, only="adamw"),
}
_HAS_QK_NORM = ("qwen3", "olmo2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A ladder: runs of one model that share everything but the rate."""

    model: str
    steps: int
    batch: int = 16
    optimizer: str = "adamw"
    seed: int = 1

    @property
    def rates(self) -> list[float]:
        """The rates, ascending."""
        first = _FIRST[self.model] * _PER_ADAM[self.optimizer]
        return [float(f"{first * 2**k:.6g}") for k in range(_RATES)]

    def arms(self) -> list[str]:
        """Return the arms that it can be trained with."""
        return [
            name
            for name, arm in ARMS.items()
            if arm.only in ("", self.optimizer)
            and not (name == "qk_norm" and self.model in _HAS_QK_NORM)
        ]


def rounds() -> Iterator[tuple[Sequence[Cell], Sequence[str]]]:
    """Yield cells and the arms that they are trained with, arm by arm."""
    first, others = list(ARMS)[:_FIRST_ARMS], list(ARMS)[_FIRST_ARMS:]
    yield [Cell(model=m, steps=1200) for m in CHOOSING], _AGAIN
    for models, lengths in ((CHOOSING, (1200, 2400)), (LEFT_OUT, (600, 1200, 2400))):
        yield [Cell(model=m, steps=steps) for m, steps in product(models, lengths)], _THIRD
    longer = [c for cells in _left_out(1) for c in cells if c.steps == 1200]
    for cell in sorted(longer, key=lambda c: (c.batch > 16, c.model in CHOOSING)):
        yield [cell], ("none", "shrink")
    judged = list(_left_out(1))
    alike = [
        cells for cells in judged if {(c.optimizer, c.batch) for c in cells} == {("adamw", 16)}
    ]
    for cells in [*alike, *judged]:  # over 160 steps all is trained, and shrink is weights_0.05
        yield [c for c in cells if c.steps > 160], _JUDGED
    for seed, arms, steps in product((1, 2), (first, others), (160, 1200)):
        yield [Cell(model=m, steps=steps, seed=seed) for m in CHOOSING], arms
    yield from ((cells, list(ARMS)) for seed in (1, 2) for cells in _left_out(seed))


def _left_out(seed: int) -> Iterator[Sequence[Cell]]:
    """Yield cells that nothing is chosen on, short ones first."""
    others = [("adamw", 4), ("adamw", 64), ("muon", 16), ("lion", 16)]
    for steps in (160, 600, 1200, 2400):
        yield [Cell(model=m, steps=steps, seed=seed) for m in LEFT_OUT]
        if steps in (600, 2400):
            yield [Cell(model=m, steps=steps, seed=seed) for m in CHOOSING]
            continue
        for optimizer, batch in others:
            whole = Cell(model="", steps=steps, seed=seed, optimizer=optimizer, batch=batch)
            yield [replace(whole, model=m) for m in (*LEFT_OUT, *CHOOSING)]


@lru_cache(maxsize=4)
def _batches(steps: int, batch: int, seed: int) -> list[Batch]:
    return make_task("bytes", length=_LENGTH).batches(steps, batch, seed=seed)


def trained(cell: Cell, name: str, rate: float) -> dict[str, object]:
    """Train one run and return its row."""
    arm = ARMS[name]
    changes = dict(arm.recipe or {})
    recipe = Recipe(
        learning_rate=rate * arm.rate,
        optimizer=cell.optimizer,
        adam_beta2=0.95,
        weight_decay=0.1,
        max_grad_norm=1.0,
        batch_size=cell.batch,
        sequence_length=_LENGTH,
        max_steps=cell.steps,
        warmup_steps=cell.steps // 10 * int(changes.pop("warmup", 1)),
    ).model_copy(update=changes)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"vocab_size": _VOCABULARY, "max_position_embeddings": _LENGTH, "init_std": 0.02}
    model = build_member(cell.model, shape, seed=cell.seed)
    acting = [arm.make()] if arm.make else []
    began = time.process_time()
    batches = _batches(cell.steps, cell.batch, cell.seed)
    curves = run(
        model, batches, recipe, watch=Watch([]), interventions=acting, seed=cell.seed
    ).curves
    final = math.inf if POLICY.has_diverged(curves) else POLICY.final_loss(curves)
    return {
        **{field: getattr(cell, field) for field in Cell.__dataclass_fields__},
        "arm": name,
        "rate": rate,
        "final": round(final, 4) if math.isfinite(final) else None,
        "first": round(float(curves.loss[0]), 4),
        "ms": round(1e3 * (time.process_time() - began) / len(curves.loss), 2),
    }


def rows() -> list[dict]:
    """Return the rows so far; a line that was cut off is left out."""
    found = []
    for line in ROWS.read_text().splitlines() if ROWS.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _key(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[field] for field in (*Cell.__dataclass_fields__, "arm", "rate"))


def main() -> None:
    """Train what the file lacks, or the part of the models that one of several processes takes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--models", nargs="+", default=list(CHOOSING + LEFT_OUT))
    models = parser.parse_args().models
    torch.set_num_threads(1)
    done = {_key(row) for row in rows()}
    for cells, arms in rounds():
        for name in arms:
            for cell in (c for c in cells if c.model in models and name in c.arms()):
                for rate in cell.rates:
                    asked = {**{f: getattr(cell, f) for f in Cell.__dataclass_fields__}}
                    if _key({**asked, "arm": name, "rate": rate}) in done:
                        continue
                    line = json.dumps(trained(cell, name, rate))
                    with ROWS.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
