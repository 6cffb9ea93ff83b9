"""Earlier runs in the same log: what a run goes on with, and its siblings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rksp.watch.expected import Sibling

_MOST = 64 * 2**20  # bytes of a log that are read, its newest
_SIBLINGS = 8
_END = 10  # losses that the end of a run is a mean of


@dataclass(slots=True)
class Past:
    """A run that is over.

    Attributes:
        facts: Its line of kind `run`.
        losses: By step, in nats: the model's own where it is known, else what backward was on.
        seen: Targets up to each of these steps; steps where none are known.
        rate: The last learning rate.
        last: The line of the last step.
    """

    facts: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    rate: float | None = None
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float | None:
        """The mean of its last losses; None if it has too few or one that is no number."""
        part = self.losses[-_END:]
        mean = sum(part) / len(part) if len(part) == _END else math.nan
        return mean if math.isfinite(mean) else None

    def is_like(self, facts: dict[str, Any]) -> bool:
        """Tell whether it trained a model of the same class and size."""
        return all(self.facts.get(name) == facts.get(name) for name in ("model", "parameters"))


def past_runs(log: Path) -> list[Past]:
    """Return the runs in a log of `rksp watch`, oldest first; none of a file that is no log."""
    found: list[Past] = []
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _MOST))
            lines = file.read().decode("utf-8", "replace").split("\n")[:-1]  # whole ones
    except OSError:
        return []
    for line in lines:
        if line.startswith('{"kind": "run"'):
            found.append(Past(json.loads(line)))
        elif found and line.startswith('{"kind": "step"'):
            step = json.loads(line)
            loss = step.get("own") if step.get("own") is not None else step.get("loss")
            if loss is not None:
                found[-1].losses.append(float(loss))
                seen = found[-1].seen
                seen.append((seen[-1] if seen else 0) + step.get("targets", 1))
            found[-1].rate = step.get("rate", found[-1].rate)
            found[-1].last = step
    return found


def siblings(runs: Sequence[Past], facts: dict[str, Any]) -> list[Sibling]:
    """Return earlier runs of the same command with the same model, the newest ones."""
    same = [
        run for run in runs if run.is_like(facts) and run.facts.get("command") == facts["command"]
    ]
    return [Sibling(run.seen, run.losses) for run in same if run.losses][-_SIBLINGS:]
