"""A command's own process: its streams, which change no exit code, its threads and its progress."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rksp.ground.errors import Incomplete
from rksp.ground.text import one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rksp.documents.options import MeasureOptions

_SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")  # that rich and typer read as whole numbers
_WIDEST = 10_000
_MOST_THREADS = 1024
# Called with what is done, the finished work, and all work in the same unit (0: unknown).
Report = Callable[[str, float, float], None]
_MEASURING = "  measuring… (this is what the configuration alone says)"
_STANDS = "  not measured: this is what the configuration alone says"
_SPARSE_SECONDS = 30.0  # between passing lines where stderr is no terminal
_FEWEST = 3  # events of a step before its pace says something


class Stream:
    """A stream that has its own answer to a disk that is full and to a reader that is gone.

    It breaks `##[`, which GitHub's runner takes for a command anywhere in a line.

    Args:
        inner: The real stream.
        is_answer: It is stdout, whose loss is an error. What stderr cannot say is lost.
    """

    def __init__(self, inner: TextIO, *, is_answer: bool) -> None:
        self.inner, self.is_answer, self.is_lost = inner, is_answer, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, text: str) -> int:
        """Write text; return its length.

        Raises:
            BrokenPipeError: Nobody reads stdout.
            Incomplete: stdout cannot be written.
        """
        with self._guarded():
            self.inner.write(text.replace("##[", "#\\u0023["))
        return len(text)

    def flush(self) -> None:
        """Write what waits; raises as `write`."""
        with self._guarded():
            self.inner.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.is_lost = True
            discard(self.inner)
            if not self.is_answer:
                return
            if isinstance(error, BrokenPipeError):
                raise
            said = f"The answer cannot be written to stdout: {error.strerror}."
            raise Incomplete(said) from error


def discard(stream: TextIO) -> None:
    """Drop what a stream has not written, or Python would fail on it once more as it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def own_streams() -> Iterator[tuple[Stream, Stream]]:
    """Yield stdout and stderr that no locale, full disk or closed descriptor breaks."""
    _fill_closed_descriptors()
    for name in _SIZES:
        told = os.environ.get(name, "1")
        if not (told.isascii() and told.isdigit() and 0 < int(told[:9]) <= _WIDEST):
            del os.environ[name]
    out, err = _opened(sys.stdout, 1), _opened(sys.stderr, 2)
    for stream in (out, err):
        if hasattr(stream, "reconfigure"):  # not where a test or a notebook put its own
            stream.reconfigure(errors="backslashreplace")
    pair = Stream(out, is_answer=True), Stream(err, is_answer=False)
    with contextlib.redirect_stdout(pair[0]), contextlib.redirect_stderr(pair[1]):
        yield pair


def _opened(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a stream; Python has none where the descriptor was closed when it began."""
    if stream is not None:
        return stream
    return os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)


def _fill_closed_descriptors() -> None:
    """Open closed descriptors the wrong way round: none is given to a file, and all use fails."""
    for number, way in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)  # gets the lowest number that is free, which is this one


def default_threads() -> int:
    """Return two on CI, else half of the cores: more threads than free cores cost tenfold."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isascii() and given.isdigit() and int(given[:9]) > 0:
        return min(int(given[:9]), _MOST_THREADS)
    return 2 if os.environ.get("CI") else max(1, (os.cpu_count() or 2) // 2)


def counted_threads(options: MeasureOptions) -> MeasureOptions:
    """Return the options with the number of threads in place."""
    return options.model_copy(update={"threads": options.threads or default_threads()})


def with_threads(options: MeasureOptions) -> MeasureOptions:
    """Set the threads of torch, and return the options with their number in place."""
    import torch

    options = counted_threads(options)
    torch.set_num_threads(options.workers)
    return options


def quiet_transformers() -> None:
    """Silence the warnings and progress bars of transformers."""
    from rksp.models.configuration import offline

    with offline():
        from transformers.utils import logging

    untyped: Any = logging
    untyped.set_verbosity_error()
    untyped.disable_progress_bar()


@contextmanager
def stdout_for_us_alone() -> Iterator[None]:
    """Send what other code prints to stderr, so that stdout carries only the result."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # no real stdout, as under a test runner that closed it
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def live_progress(
    keeps: Callable[[str], bool] = lambda what: False,
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


def sparse(clock: Callable[[], float], keeps: Callable[[str], bool] = lambda what: False) -> Report:
    """Print what stays and the start of each step, and one other line every half minute."""
    said = float("-inf")
    left = time_left(clock)

    def report(what: str, done: float, total: float) -> None:
        nonlocal said
        what = one_line(what)
        remaining = left(done, total)
        if not keeps(what):
            if done > 0 and clock() - said < _SPARSE_SECONDS:
                return
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
    whole = round(minutes)
    return f"{whole} min" if whole < 60 else f"{whole // 60} h {whole % 60} min"


@contextmanager
def told_if_interrupted(what: str) -> Iterator[None]:
    """Say on stderr what an interruption leaves, unless an answer stands on the terminal."""
    try:
        yield
    except FirstAnswerStands:
        raise
    except KeyboardInterrupt:
        print(f"rksp: {what}", file=sys.stderr)
        raise


def goes_on_from(kept: Path | None, option: str, what: str) -> str:
    """Say where finished work is, if it is kept, and that the same command goes on."""
    if kept is None:
        return f"nothing was kept; with {option} finished {what} are, and the command goes on"
    return f"finished {what} are in {kept}; the same command goes on from there"


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
def standing(page: RenderableType, terminal: Console) -> Iterator[Report]:
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
