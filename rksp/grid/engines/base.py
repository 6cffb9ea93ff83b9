"""The protocol of an engine, which works on groups of cells and reports events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rksp.grid.events import CellGroup, Event, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended; a failure names its cause."""

    failure: Failure | None = None
    message: str = ""


class Job(Protocol):
    """One group of cells at work."""

    def poll(self) -> list[Event]:
        """Return the events since the last call, without waiting."""

    def end(self) -> End | None:
        """Return None while the job works; after that every event must have been polled."""

    def stop(self) -> None:
        """Stop the work at once."""


class Engine(Protocol):
    """A place where groups are worked on."""

    slots: int

    def start(self, group: CellGroup) -> Job:
        """Start to work on a group."""

    def close(self) -> None:
        """Stop everything that the engine started."""
