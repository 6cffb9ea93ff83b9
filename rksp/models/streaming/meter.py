"""How far a long measurement has come."""

from __future__ import annotations

from collections.abc import Callable

# Called with what is done, what there is to do, in the same unit, and what is being done.
Progress = Callable[[float, float, str], None]


class Meter:
    """Adds up work and reports it.

    Args:
        progress: See `Progress`; None reports to nobody.
        total: Work in all, by any measure that grows evenly with time.
        label: What it is.
    """

    def __init__(self, progress: Progress | None, total: float, label: str) -> None:
        self.progress, self.total, self.label, self.done = progress, total, label, 0.0

    def add(self, work: float) -> None:
        """Reports so much more."""
        self.done = min(self.total, self.done + work)
        if self.progress is not None:
            self.progress(self.done, self.total, self.label)

    def finish(self) -> None:
        """Reports that nothing is left."""
        self.add(self.total)
