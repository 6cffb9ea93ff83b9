"""Values of configuration files: YAML 1.2 numbers, and values that are set elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
WHOLE = re.compile(r"[-+]?[0-9][0-9_]*")


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that is set elsewhere: an `!include`, or an unknown reference."""

    text: str


def read_number(text: str) -> int | float | None:
    """Parse a number by the rules of YAML 1.2; None for other text, such as `1.0e_8`."""
    text = text.strip()
    if WHOLE.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "")) if NUMBER.fullmatch(text) else None
