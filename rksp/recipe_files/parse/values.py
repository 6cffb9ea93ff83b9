"""Values of configuration files: YAML 1.2 numbers, and values that are set elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
WHOLE = re.compile(r"[-+]?[0-9][0-9_]*")
_LONGEST = 300  # characters of a whole number; Python refuses to read one of 4,300 digits


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that is set elsewhere: an `!include`, or an unknown reference."""

    text: str


def read_number(text: str) -> int | float | None:
    """Parse a number by the rules of YAML 1.2; None for other text, such as `1.0e_8`.

    A whole number of hundreds of digits is read as infinite.
    """
    text = text.strip()
    if WHOLE.fullmatch(text) and len(text) <= _LONGEST:
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if NUMBER.fullmatch(text) else None
