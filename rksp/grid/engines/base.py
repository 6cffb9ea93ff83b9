"""The protocol of an engine, which works on groups of cells and reports events as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

Failure = Literal["invalid", "out of memory", "error", "killed", "timeout"]

# A retry cannot repair a wrong configuration, and a cell that hung would hang again.
FINAL: tuple[Failure, ...] = ("invalid", "error", "timeout")


class CellGroup(TypedDict):
    """A group of cells with one initialization; `cells` holds pairs of key and recipe, as JSON.

    `has_weights` says that the run file names weights to start from.
    """

    target: str
    overrides: dict[str, object]
    seed: int
    has_weights: bool
    options: dict[str, object]
    cells: list[tuple[str, str]]


class Event(TypedDict, total=False):
    """One event of a group: its begin, its profile, a cell's result, or a failure.

    Attributes:
        kind: `started`, `profile`, `result` or `failed`.
        cell: The cell's key; absent if the event concerns the whole group.
        seconds: The time that the profile took.
        result: See `rksp.grid.cell.summarize`.
        failure: The kind of failure.
        message: One sentence.
    """

    kind: Literal["started", "profile", "result", "failed"]
    cell: str
    seconds: float
    result: dict[str, object]
    failure: Failure
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended; a failure names its cause."""

    failure: Failure | None = None
    message: str = ""


class Job:
    """One group of cells at work; this one was answered before.

    Args:
        known: Events that have happened already.
    """

    def __init__(self, known: Iterable[Event] = ()) -> None:
        self._events = list(known)
        self._is_done = False  # it said so itself

    def poll(self) -> list[Event]:
        """Return the events since the last call, without waiting."""
        self._drain()
        events, self._events = self._events, []
        return events

    def end(self) -> End | None:
        """Return None while the job works; after that every event must have been polled."""
        self._drain()
        end = End() if self._is_done else self._cause()
        if end is not None:
            self._drain()  # what came in between
        return End() if self._is_done else end

    def _cause(self) -> End | None:
        """Return how a job ended that did not say so itself; None while it works."""
        return End()

    def stop(self) -> None:
        """Stop the work at once."""

    def _drain(self) -> None:
        """Add what has happened since the last call to `_events`."""


class Engine(Protocol):
    """A place where groups are worked on."""

    slots: int

    def start(self, group: CellGroup) -> Job:
        """Start to work on a group."""

    def close(self) -> None:
        """Stop everything that the engine started."""
