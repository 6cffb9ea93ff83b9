"""What an engine is: something that works on groups of cells and tells what happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rksp.grid.events import CellGroup, Event, Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended: by itself, or with a cause."""

    failure: Failure | None = None
    message: str = ""


class Job(Protocol):
    """One group of cells at work."""

    def poll(self) -> list[Event]:
        """What happened since the last call; never waits."""

    def end(self) -> End | None:
        """None while at work; once it is not, every event has been polled."""

    def stop(self) -> None:
        """Ends the work, whatever it is doing."""


class Engine(Protocol):
    """Where groups are worked on."""

    slots: int

    def start(self, group: CellGroup) -> Job:
        """Begins to work on a group."""

    def close(self) -> None:
        """Ends everything that the engine started."""
