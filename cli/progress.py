"""Show progress on stderr: one live line with the remaining time, or few lines in a log file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rksp.ground.text import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Called with what is done, the finished work, and all work in the same unit (0: unknown).
Report = Callable[[str, float, float], None]
_MEASURING = "  measuring… (this is what the configuration alone says)"
_STANDS = "  not measured: this is what the configuration alone says"
_SPARSE_SECONDS = 30.0  # between passing lines where stderr is no terminal
_FEWEST = 3  # events of a step before its pace says something


def no_line(what: str) -> bool:
    """Keep no line: only the live line is shown."""
    return False


@contextmanager
def live_progress(
    keeps: Callable[[str], bool] = no_line,
    *,
    console: Console | None = None,
    above: Sequence[RenderableType] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Report]:
    """Yield a function that reports progress.

    Args:
        keeps: Which lines stay on the screen beside the live line.
        console: Where the live line is drawn; default stderr.
        above: What stands above the line and goes with it.
        clock: Seconds; the tests bring their own.
    """
    if console is None and not sys.stderr.isatty():
        yield sparse(clock, keeps)
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    shown = console or Console(stderr=True)
    bar = Progress(SpinnerColumn(), BarColumn(20), text, console=shown)
    # What others print goes above the drawing, unless it goes to a file.
    own: dict[str, Any] = dict.fromkeys(("redirect_stdout", "redirect_stderr"), sys.stderr.isatty())
    with Live(Group(*above, bar), console=shown, transient=True, refresh_per_second=4, **own):
        task = bar.add_task("", total=None)
        left = time_left(clock)

        def report(what: str, done: float, total: float) -> None:
            what = one_line(what)
            if keeps(what):
                bar.console.print(f"rksp: {what}", markup=False, highlight=False)
            line = f"{what}{left(done, total)}"
            bar.update(task, description=line, completed=done, total=total or None)

        yield report


def sparse(clock: Callable[[], float], keeps: Callable[[str], bool] = no_line) -> Report:
    """Print what stays and the start of each step, and one other line every half minute."""
    said = float("-inf")
    left = time_left(clock)

    def report(what: str, done: float, total: float) -> None:
        nonlocal said
        what = one_line(what)
        remaining = left(done, total)
        if done > 0 and not keeps(what):
            if clock() - said < _SPARSE_SECONDS:
                return
            said = clock()
        elif not keeps(what):
            said = clock()
        print(f"rksp: {what}{remaining}", file=sys.stderr, flush=True)

    return report


def time_left(clock: Callable[[], float]) -> Callable[[float, float], str]:
    """Return ` (about 5 min left)`, by the pace since the first event of this step.

    A smaller count or another total begins a new step.
    """
    begun: tuple[float, float] | None = None
    heard, all_work = 0, 0.0

    def left(done: float, total: float) -> str:
        nonlocal begun, heard, all_work
        if begun is None or done < begun[1] or total != all_work:
            begun = (clock(), done) if done else None
            heard, all_work = 0, total
            return ""
        heard += 1
        seconds, work = clock() - begun[0], done - begun[1]
        if heard < _FEWEST or work <= 0 or done >= total:
            return ""
        minutes = seconds / work * (total - done) / 60
        return f" (about {_duration(minutes)} left)" if minutes >= 1 else " (under a minute left)"

    return left


def _duration(minutes: float) -> str:
    """Format minutes: 5 min, 1 h 30 min."""
    whole = round(minutes)
    return f"{whole} min" if whole < 60 else f"{whole // 60} h {whole % 60} min"


class FirstAnswerStands(KeyboardInterrupt):
    """The measurement was interrupted; the configuration's answer is on the terminal."""


@contextmanager
def terminal_of_stdout(*, is_wanted: bool) -> Iterator[Console | None]:
    """Yield a console on the terminal behind stdout, which works while stdout is not ours.

    It is None where stdout is a file, a pipe or a terminal that cannot erase.
    """
    if not (is_wanted and sys.stdout.isatty()) or os.environ.get("TERM") in ("dumb", "unknown"):
        yield None
        return
    from rich.console import Console

    sys.stdout.flush()
    again = os.dup(sys.stdout.fileno())
    with os.fdopen(again, "w", encoding=sys.stdout.encoding) as terminal:
        yield Console(file=terminal, highlight=False)


@contextmanager
def standing(page: Any, terminal: Console) -> Iterator[Report]:
    """Show a page with live progress below it, and erase both at the end.

    If the block is interrupted, the page stays and says that nothing was measured.

    Args:
        page: What to draw.
        terminal: Where.

    Raises:
        FirstAnswerStands: The block was interrupted.
    """
    try:
        with live_progress(console=terminal, above=(page, _MEASURING)) as report:
            yield report
    except KeyboardInterrupt:
        terminal.print(page)
        terminal.print(_STANDS, markup=False)
        raise FirstAnswerStands from None
