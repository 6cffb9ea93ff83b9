"""The lines of a watch's log, and what a watch asks of `rksp watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from rksp.documents.confirm import CauseReport, ForecastReport
from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.sinks import record_of, text_of_record


class Began(BaseModel):
    """A run began: its model, its processes, the command of `rksp watch`, and releases."""

    model: str = ""
    parameters: int | None = None
    optimizer: str = ""
    ranks: int = 1
    rank: int = 0
    command: str = ""
    rksp: str | None = None
    torch: str | None = None
    silent: dict[str, str] = {}  # monitor -> why it is off


class Stepped(BaseModel):
    """A step ended; None of what is not known."""

    step: int
    loss: float | None = None  # what backward was called on
    own: float | None = None  # the model's own loss, in nats
    rate: float | None = None
    seconds: float | None = None
    targets: int | None = None
    clip: float | None = None  # the norm to which the script clips


class Stopped(BaseModel):
    """An alarm stopped the run."""

    step: int
    reason: str


class Ended(BaseModel):
    """A run ended; one that was killed has no seconds."""

    steps: int | None = None
    seconds: float | None = None
    silent: dict[str, str] = {}
    crash: str | None = None
    killed: str | None = None  # by what, as `rksp watch` saw


Line: TypeAlias = Began | Stepped | CauseReport | Stopped | Ended | ForecastReport
KINDS: dict[str, type[Line]] = {
    "run": Began,
    "step": Stepped,
    "cause": CauseReport,
    "stop": Stopped,
    "end": Ended,
    "forecast": ForecastReport,
}


def text_of(line: Line) -> str:
    """Return a line of a log, with its end."""
    kind = next(name for name, of in KINDS.items() if type(line) is of)
    known = line.model_dump(exclude_unset=True, exclude_none=kind == "step")
    return text_of_record(kind, known)


def line_of(entries: dict[str, Any]) -> Line | Reading | Alarm | None:
    """Return what a line of a log says; None of a kind that older releases wrote.

    Raises:
        ValueError, TypeError, LookupError: It is no line of a log.
    """
    name = entries["kind"]
    if name == "targets":
        return None
    kind = KINDS.get(name)
    if kind is None:
        return record_of(entries)
    return kind.model_validate({k: v for k, v in entries.items() if k in kind.model_fields})


class Question(BaseModel):
    """What the watch of a run asks `rksp watch` to forecast, and into which log."""

    config: dict[str, Any]  # of transformers
    recipe: dict[str, Any]
    model: str
    log: Path
    loss: float | None  # the first one, and that of a guess among the vocabulary
    guess: float | None
