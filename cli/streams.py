"""stdout and stderr of a command: what cannot be written changes no exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from rksp.ground.errors import Incomplete

_SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")  # that rich and typer read as whole numbers
_WIDEST = 10_000


class Stream:
    """A stream that has its own answer to a disk that is full and to a reader that is gone.

    It breaks `##[`, which GitHub's runner takes for a command anywhere in a line.

    Args:
        inner: The real stream.
        is_answer: It is stdout, whose loss is an error. What stderr cannot say is lost.
    """

    def __init__(self, inner: Any, *, is_answer: bool) -> None:
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

    @contextlib.contextmanager
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


def discard(stream: Any) -> None:
    """Drop what a stream has not written, or Python would fail on it once more as it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
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


def _opened(stream: Any, descriptor: int) -> Any:
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
