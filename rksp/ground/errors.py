"""Define the errors of rksp. A message says what is wrong, what was given and what to do.

RkspError
├── InputError        the target, the recipe or an option cannot be used     (exit code 2)
│   └── NotCovered    a valid model that the method does not apply to        (exit code 2)
├── ArtifactError     a stored file (classifier, report, collection) is bad  (exit code 2)
└── Incomplete        part of the work could not be finished                 (exit code 3)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rksp.ground.text import one_line


class RkspError(Exception):
    """Root of every error that rksp raises on purpose.

    Args:
        message: One sentence. It is put on one line without control characters, and cut in the
            middle beyond 1,000 characters, since it may hold what a stranger wrote.
    """

    exit_code = 3

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class InputError(RkspError):
    """The user's input cannot be used as given."""

    exit_code = 2


class UnknownModel(InputError):
    """Nobody here knows the model that a name stands for."""


class NotCovered(InputError):
    """The model is valid but has no residual stream that rksp can read."""


class ArtifactError(RkspError):
    """A stored file is damaged, of another schema, or of another kind."""

    exit_code = 2


class Incomplete(RkspError):
    """Part of the work is done and kept; the rest could not be done."""

    exit_code = 3


@contextmanager
def foreign(sentence: str, advice: str = "") -> Iterator[None]:
    """Turn what code of a user, or compiled code of a library, raises into an `InputError`.

    Panics of compiled code are no `Exception`.

    Args:
        sentence: What is wrong, without the full stop; the error is added.
        advice: What to do, a clause.

    Raises:
        InputError: The block failed, but not for want of memory.
    """
    try:
        yield
    except (KeyboardInterrupt, MemoryError, RkspError):
        raise
    except BaseException as error:
        end = f"; {advice}" if advice else ""
        raise InputError(f"{sentence} ({summary(error)}){end}.") from error


def check_kind(name: str, value: object, kind: Any, wanted: str) -> None:
    """Check an argument of a call from Python.

    Args:
        name: Of the argument.
        value: What was given.
        kind: A type, or a union of types.
        wanted: What it should be, in words.

    Raises:
        InputError: It is of another kind.
    """
    if not isinstance(value, kind):
        plain = isinstance(value, str | bytes | int | float | None)
        given = f"{value!r:.200}" if plain else f"of type {type(value).__name__}"
        raise InputError(f"{name} is {given}; it should be {wanted}.")


def summary(error: BaseException, most: int = 200) -> str:
    """Return type and text of an error of other people's code in one line: `ValueError: …`.

    Args:
        error: The error.
        most: Characters of its text.
    """
    try:
        text = " ".join(str(error).split())[:most]
    except BaseException:  # a text of other people's code, which may raise anything
        text = ""
    return f"{type(error).__name__}: {text or 'no message'}"


def nearest(
    name: str,
    known: Iterable[str],
    *,
    count: int = 3,
    same: Mapping[str, str] | None = None,
    cutoff: float = 0.55,
) -> str:
    """Return `"; did you mean a, b?"` for the known names closest to `name`, or `""`.

    Capitals do not count.

    Args:
        name: What was typed.
        known: All names.
        count: Name at most this many.
        same: Alias → name; of two spellings only the closer one is named.
        cutoff: How close they must be, from 0 to 1.
    """
    plain = {one.lower(): one for one in known}
    matches = difflib.get_close_matches(name.lower(), list(plain), n=2 * count, cutoff=cutoff)
    found = [plain[one] for one in matches]
    spellings: dict[str, str] = {}
    for one in found:
        spellings.setdefault((same or {}).get(one, one), one)
    close = list(spellings.values())[:count]
    return f"; did you mean {', '.join(close)}?" if close else ""
