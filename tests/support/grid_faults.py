"""An evaluator for tests of engines and stores: it measures nothing and fails on request.

The target's overrides request the failures: `die_in_profile`, `die_at` (index of a cell),
`die_once` (a file that marks the first death), `raise_at`, `hang_at`, `invalid`, `seconds` (of a
profile), `pause` (per cell).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from rksp.grid.group import CellAnswer, CellGroup, Event


def evaluate(group: CellGroup) -> Iterator[Event]:
    """Yield one profile event, then a result for each cell that is a function of the cell alone."""
    told = group.overrides
    if told.get("invalid"):
        yield Event(kind="failed", failure="invalid", message="there is no such model.")
        return
    time.sleep(told.get("seconds", 0))
    if told.get("die_in_profile"):
        _die()
    yield Event(kind="profile", seconds=told.get("seconds", 0))
    marker = Path(told["die_once"]) if "die_once" in told else None
    for cell in group.cells:
        recipe = json.loads(cell.recipe)
        if told.get("die_at") == recipe["max_steps"]:
            _die()
        if told.get("raise_at") == recipe["max_steps"]:
            raise RuntimeError("nobody expected this")
        if told.get("hang_at") == recipe["max_steps"]:
            time.sleep(3600)
        if marker is not None and not marker.exists():
            marker.touch()
            _die()
        time.sleep(told.get("pause", 0))
        print("noise on stdout")
        result = CellAnswer(verdict="ok", probability_failed=recipe["learning_rate"])
        yield Event(kind="result", cell=cell.key, result=result)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
