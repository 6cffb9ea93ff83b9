"""The finding: one thing that a check saw."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is.

    Attributes:
        ERROR: Known to break runs at the value found.
        WARNING: Outside the healthy range; some runs survive it.
        NOTE: Worth knowing, harmless by itself.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check saw in a configuration.

    Attributes:
        code: Stable: RKSP and three digits.
        name: Stable short name in lower-case words joined by hyphens.
        level: How bad it is.
        message: One sentence with the number: what is wrong.
        value: The number that tripped it; None where there is none (a missing part).
        healthy: The range that would have been silent, in words ("at most 1.5 ln V").
        fix: The smallest change that would silence it, one sentence.
        source: Where the threshold comes from (author, year, or "measured on our runs").
        layer: Path of the module; empty for the whole model.
    """

    code: str
    name: str
    level: Level
    message: str
    value: float | None
    healthy: str
    fix: str
    source: str
    layer: str = ""
