"""The protocol of an engine, which works on groups of cells and reports events."""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from rksp.grid.group import CellGroup, Event, Failure

EVALUATOR = "rksp.grid.cell:evaluate_group"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a job ended; a failure names its cause."""

    failure: Failure | None = None
    message: str = ""


class Job(ABC):
    """One group of cells at work.

    Attributes:
        arrived: Events that `poll` has not told yet.
        is_over: `poll` has told how it ended.
    """

    def __init__(self, known: Iterable[Event] = ()) -> None:
        self.arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.is_over = False
        for event in known:
            self.arrived.put(event)

    def poll(self) -> tuple[list[Event], End | None]:
        """Return the events since the last call, and how the job ended; None while it works."""
        end = self._ended()  # before the events, so that the last ones are not missed
        events = [self.arrived.get_nowait() for _ in range(self.arrived.qsize())]
        if events and events[-1].kind == "end":
            events, end = events[:-1], End()
        self.is_over = end is not None
        return events, end

    @abstractmethod
    def _ended(self) -> End | None:
        """Return how a job ended that does not say so itself; None while it works."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the work at once."""


class Engine(Protocol):
    """A place where groups are worked on."""

    slots: int

    def submit(self, group: CellGroup) -> Job:
        """Start to work on a group."""

    def close(self) -> None:
        """Stop everything that the engine started."""


def work(evaluator: str, group: CellGroup) -> Iterator[Event]:
    """Evaluate a group in a worker.

    Args:
        evaluator: The function that evaluates it, as `package.module:function`.
        group: The group.
    """
    yield Event(kind="started")
    yield from load_evaluator(evaluator)(group)
    yield Event(kind="end")


def load_evaluator(name: str) -> Callable[[CellGroup], Iterator[Event]]:
    """Import the function that workers run, named as `package.module:function`."""
    module, _, function = name.partition(":")
    found: Callable[[CellGroup], Iterator[Event]] = getattr(import_module(module), function)
    return found
