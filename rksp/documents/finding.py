"""The finding: the result of one check, or the verdict as an issue."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rksp.documents.base import Part


class Level(StrEnum):
    """The severity of a finding, worst first.

    Attributes:
        ERROR: Known to break runs at this value.
        WARNING: Outside the healthy range; some runs survive it.
        NOTE: Worth knowing, but harmless by itself.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


# Formats print it as it is.
Code = Annotated[str, Field(pattern=r"^(RKSP[0-9]{3}|RKSA-[0-9]{4}-[0-9]{4})$")]
RISK = "RKSP001"  # the verdict, at or above the bar
LEVELS = (Level.NOTE, Level.WARNING, Level.ERROR)  # in rising order


class Edit(Part):
    """One change of the run. Where its file can be edited safely, replace `old` by `new` there.

    Attributes:
        field: Field of the recipe; of an advisory, the trainer's key.
        was: Its value; None if it has none.
        to: Its new value.
        file: The run file; None where the recipe was typed, or only a person can edit the file.
        line: Line in it, counted from 1.
        column: Column of the first character of `old`, counted from 1.
        old: The text that goes; empty where a line is added.
        new: The text that comes.
    """

    field: str
    was: int | float | str | None
    to: int | float | str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    old: str = ""
    new: str = ""


def applied(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits, of which no two may overlap."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda one: (one.line or 0, one.column or 0), reverse=True):
        line, start = (edit.line or 1) - 1, (edit.column or 1) - 1
        before, after = lines[line][:start], lines[line][start + len(edit.old) :]
        lines[line] = before + edit.new + after
    return "\n".join(lines)


class Finding(Part):
    """One result of a check.

    Attributes:
        code: Stable: RKSP and three digits, or the id of an advisory, RKSA-2026-0036. RKSP001 is a
            risk at or above the bar, RKSP002 means that rksp cannot tell, RKSP004 that
            a cell of a grid could not run.
        name: Stable short name in lower-case words joined by hyphens.
        level: Its severity.
        message: One sentence with the number: what is wrong.
        value: The number that caused it; None if there is none (a missing part).
        healthy: The range without a finding, in words ("at most 1.5 ln V").
        fix: The smallest change that would remove it, one sentence.
        edit: The same fix as changes of single settings; empty where it is no number or word.
        source: Where the threshold comes from (author, year, or "measured on our runs").
        layer: Path of the module; empty for the whole model.
        is_cause: The check names a documented cause of failures, so as a warning it makes the
            verdict at least caution (`rksp.documents.verdict`).
    """

    code: Code
    name: str
    level: Level
    message: str
    value: float | None = None
    healthy: str = ""
    fix: str = ""
    edit: list[Edit] = Field(default_factory=list)
    source: str = ""
    layer: str = ""
    is_cause: bool = False

    @property
    def key(self) -> str:
        """The code, and the module if there is one: stable over commits, paths and wording."""
        return f"{self.code}@{self.layer}" if self.layer else self.code

    @property
    def severity(self) -> int:
        """Position in `LEVELS`."""
        return LEVELS.index(self.level)

    @property
    def text(self) -> str:
        """The message and its fix."""
        return f"{self.message} {self.fix}".strip()
