"""The tables of the experiment `bounds`, closed: each arm beside the same ladders without it.

`bounds.md` registers it and says what each arm is; `results/bounds.jsonl` holds its runs. The rule
that it chose is `rksp.UpdateBound`; the others, and the loop that trained them, stand in commit
f6ee1dcf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.experiments.shaping import HALF, Compared, compared, halved, table_of
from rksp.ground.model import Strict

ROWS = Path(__file__).parent / "results" / "bounds.jsonl"
CHOOSING = ("gpt2", "llama", "qwen3")
_RATES = 7  # of a whole ladder


class BoundRow(Strict):
    """One run: its ladder, the arm, the peak rate, and what became of it.

    Attributes:
        final: Final loss in nats; None if the run diverged.
        first: Loss of the first step, in nats.
        ms: Processor milliseconds a step.
    """

    model: str
    steps: int
    batch: int
    optimizer: str
    seed: int
    arm: str
    rate: float
    final: float | None
    first: float
    ms: float

    @property
    def kind(self) -> tuple[bool, bool, str, int, int]:
        """What the runs of a table share; the table of the choice comes first."""
        is_other = self.optimizer != "adamw", self.batch != 16
        return (*is_other, self.optimizer, self.batch, self.steps)


Ladder = Mapping[float, BoundRow]


def shipped() -> str:
    """Return a table for every kind of run, of the choosing and of the left-out models apart."""
    found = [BoundRow.model_validate_json(line) for line in ROWS.read_text().splitlines()]
    arms = list(dict.fromkeys(row.arm for row in found))  # in the order of their training
    found.sort(key=lambda row: arms.index(row.arm))
    parts = []
    for kind in sorted({row.kind for row in found}):
        for noun, is_chosen in (("chosen on", True), ("left out", False)):
            rows = [r for r in found if r.kind == kind and (r.model in CHOOSING) == is_chosen]
            groups = by_arm(rows)
            if groups:
                *_, optimizer, batch, steps = kind
                parts.append(f"{optimizer}, batch {batch}, {steps:,} steps, models {noun}:\n")
                parts.append(table_of(groups))
    return "\n".join(parts)


def by_arm(rows: Sequence[BoundRow]) -> dict[str, list[Compared]]:
    """Return the comparisons of every arm over the whole ladders among runs of one kind."""
    ladders: dict[tuple[str, int], dict[str, dict[float, BoundRow]]] = {}
    for row in rows:
        arms = ladders.setdefault((row.model, row.seed), {})
        arms.setdefault(row.arm, {})[row.rate] = row
    found: dict[str, list[Compared]] = {}
    for arms in ladders.values():
        plain = arms.pop("none", {})
        if len(plain) < _RATES:
            continue
        before, lost = _losses(plain), next(iter(plain.values())).first
        found.setdefault(HALF, []).append(halved(before, lost=lost))
        for arm, changed in arms.items():
            if len(changed) == _RATES:
                after, cost = _losses(changed), _ms(changed) / _ms(plain)
                found.setdefault(arm, []).append(compared(before, after, lost=lost, cost=cost))
    return found


def _losses(ladder: Ladder) -> dict[float, float]:
    ends = {rate: ladder[rate].final for rate in sorted(ladder)}
    return {rate: math.inf if end is None else end for rate, end in ends.items()}


def _ms(ladder: Ladder) -> float:
    return min(row.ms for row in ladder.values())
