"""Evaluators of grid cells that note what they judge: what kills of a grid are tried on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rksp.grid.engines.base import EVALUATOR, load_evaluator
from rksp.grid.group import CellAnswer, CellGroup, Event

PAUSE = 0.01  # seconds a cell takes
_LOG = "RKSP_FAULTS_LOG"


def evaluate(group: CellGroup) -> Iterator[Event]:
    """Yield one profile, then for each cell a result that is a function of the cell alone."""
    yield Event(kind="profile")
    for cell in group.cells:
        recipe = json.loads(cell.recipe)
        time.sleep(PAUSE)
        _note(cell.key)
        result = CellAnswer(verdict="ok", probability_failed=recipe["learning_rate"])
        yield Event(kind="result", cell=cell.key, result=result)


def measure(group: CellGroup) -> Iterator[Event]:
    """Yield the events of rksp's own evaluator, which measures a model."""
    for event in load_evaluator(EVALUATOR)(group):
        if event.cell is not None and event.result is not None:
            _note(event.cell)
        yield event


def _note(key: str) -> None:
    with Path(os.environ[_LOG]).open("a", encoding="utf-8") as log:
        log.write(f"{key}\n")


def log_to(path: Path) -> None:
    """Let the evaluators of this process and its children note each cell that they judge."""
    os.environ[_LOG] = str(path)


def judged(path: Path) -> list[str]:
    """Return the cells that were judged, in order."""
    return path.read_text(encoding="utf-8").split() if path.exists() else []
