"""The progress of a confirmation on stderr: a bar on a terminal, few lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rksp.confirm.confirm loads torch
    from rksp.confirm.confirm import ConfirmProgress

_SPARSE_SECONDS = 30.0  # between passing lines where stderr is no terminal


@contextmanager
def live_progress() -> Iterator[ConfirmProgress]:
    """Yield a function that reports progress. Lines about alarms and finished runs stay."""
    if not sys.stderr.isatty():
        yield sparse(time.monotonic)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    text = TextColumn("{task.description}", markup=False)
    with Progress(BarColumn(20), text, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        left = time_left(time.monotonic)

        def report(what: str, done: int, total: int) -> None:
            if not _is_passing(what):
                bar.console.print(f"rksp: {what}", markup=False, highlight=False)
            shown = f"{what}{left(done, total)}"
            bar.update(task, description=shown, completed=done, total=total)

        yield report


def sparse(clock: Callable[[], float]) -> ConfirmProgress:
    """Print every line that stays, and one passing line every half minute."""
    said = float("-inf")
    left = time_left(clock)

    def report(what: str, done: int, total: int) -> None:
        nonlocal said
        remaining = left(done, total)
        if _is_passing(what):
            if clock() - said < _SPARSE_SECONDS:
                return
            said = clock()
        print(f"rksp: {what}{remaining}", file=sys.stderr, flush=True)

    return report


def time_left(clock: Callable[[], float]) -> Callable[[int, int], str]:
    """Return `, about 5 min left`, by the pace since the first step."""
    begun: tuple[float, int] | None = None

    def left(done: int, total: int) -> str:
        nonlocal begun
        if begun is None:
            begun = (clock(), done) if done else None
            return ""
        seconds, steps = clock() - begun[0], done - begun[1]
        if steps < 3 or done >= total:
            return ""
        minutes = seconds / steps * (total - done) / 60
        return f", about {minutes:.0f} min left" if minutes >= 1 else ", under a minute left"

    return left


def _is_passing(what: str) -> bool:
    return ": step " in what
