"""Report the progress of a long measurement."""

from __future__ import annotations

from collections.abc import Callable

# Called with the work done, the total work in the same unit (0: unknown), and a label.
Progress = Callable[[float, float, str], None]


class Meter:
    """Adds up work and reports it.

    Args:
        progress: See `Progress`; None reports nothing.
        total: Total work, in any measure that grows evenly with time.
        label: What the work is.
    """

    def __init__(self, progress: Progress | None, total: float, label: str) -> None:
        self.progress, self.total, self.label, self.done = progress, total, label, 0.0

    def add(self, work: float) -> None:
        """Add work and report it."""
        self.done = min(self.total, self.done + work)
        if self.progress is not None:
            self.progress(self.done, self.total, self.label)

    def finish(self) -> None:
        """Report that all work is done."""
        self.add(self.total)
