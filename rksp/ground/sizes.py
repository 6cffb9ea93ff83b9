"""Parse and write sizes and counts as people write them."""

from __future__ import annotations

import math
import re
from typing import Any

from rksp.ground.errors import InputError

_SIZE = re.compile(r"^\s*([0-9.]+)\s*([kKMGT]?)i?[bB]?\s*$")
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_POWERS = {"k": "e3", "K": "e3", "M": "e6", "B": "e9"}  # the letters of `count`


def parse_size(text: str) -> int:
    """Read bytes from `8GB`, `500 MB` or a plain number; units are powers of ten.

    Raises:
        InputError: The text is not a size.
    """
    match = _SIZE.match(text)
    if not match or not float(match[1]) > 0:
        raise InputError(f"--max-memory {text!r} is not a size; give one such as 8GB.")
    return int(float(match[1]) * _UNITS[match[2]])


def whole(value: Any) -> Any:
    """Read a count from `10000`, `10_000`, `1e4`, `10k`, `1.5M` or `1.3B`.

    Args:
        value: A text or a number; anything else is returned as it is.

    Raises:
        ValueError: It is not whole; the message says what it should be.
    """
    if isinstance(value, str):
        value = _number(value.strip())
    if not isinstance(value, float):
        return value
    if not value.is_integer():
        raise ValueError("it should be a whole number, such as 10000, 1e4, 10_000, 10k or 1.5M")
    return int(value)


def _number(text: str) -> int | float:
    """Return the number that a text says; NaN if it says none."""
    power = _POWERS.get(text[-1:])
    try:
        return float(text[:-1] + power) if power else int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return math.nan


def count(number: float) -> str:
    """Format a count with three digits and a letter: `124 M`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:g}"
