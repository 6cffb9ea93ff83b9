"""Parse and write sizes as people write them."""

from __future__ import annotations

import re

from rksp.ground.errors import InputError

_SIZE = re.compile(r"^\s*([0-9.]+)\s*([kKMGT]?)i?[bB]?\s*$")
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Read bytes from `8GB`, `500 MB` or a plain number; units are powers of ten.

    Raises:
        InputError: The text is not a size.
    """
    match = _SIZE.match(text)
    if not match or not float(match[1]) > 0:
        raise InputError(f"--max-memory {text!r} is not a size; give one such as 8GB.")
    return int(float(match[1]) * _UNITS[match[2]])


def count(number: float) -> str:
    """Format a count with three digits and a letter: `124 M`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:g}"
