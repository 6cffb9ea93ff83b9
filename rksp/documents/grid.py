"""The document of `rksp grid`: every cell's answer, ranked."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import Field, JsonValue

from rksp.documents.base import Document

FAILED = "could not run"  # the verdict of a cell whose evaluation ended in an error
_EXIT_CODES = {"ok": 0, "risk": 1, "unusable": 2, "incomplete": 3}
Record = dict[str, JsonValue]


class GridReport(Document):
    """One run of `rksp grid`.

    The verdict is about every cell, shown or not: `unusable` if none could run for what was given,
    `incomplete` if one has no result, else `risk` if one fails the gate.

    Attributes:
        cells: One record a cell that is shown, ranked: the least likely to fail first, what could
            not run last.
        cells_in_grid: Number of cells, with those that are not shown.
        axes: What varies, by the names that the user gave.
        best_safe: For each model its safe cell of the least expected loss, or None.
        pareto: For each model the cells that no other beats in rate and risk.
        failing: Positions of the shown cells that fail the gate.
        profiles_made: Models that were measured; everything else follows from these.
        made_by: Versions.
        hidden: Cells that are not shown. They are not written; the terminal's map needs them.
    """

    kind: Literal["grid"] = "grid"
    verdict: Literal["ok", "risk", "incomplete", "unusable"]
    cells: list[Record]
    cells_in_grid: int
    axes: list[str]
    best_safe: dict[str, Record | None]
    pareto: dict[str, list[Record]]
    failing: list[int]
    profiles_made: int
    made_by: dict[str, str | int | float | bool | None]
    hidden: list[Record] = Field(default_factory=list, exclude=True)

    @property
    def exit_code(self) -> int:
        """0, 1 for a risk, 2 where nothing given is usable, 3 where a cell has no result."""
        return _EXIT_CODES[self.verdict]

    @property
    def counts(self) -> Counter[str]:
        """Shown cells by verdict."""
        return Counter(str(cell["verdict"]) for cell in self.cells)

    def fails(self, cell: Record) -> bool:
        """Return True if the cell fails the gate."""
        return cell["position"] in self.failing


def complaints(cell: Record) -> list[tuple[str, str]]:
    """Split a cell's findings, "RKSP501 error RKSP502 warning", into (code, level)."""
    words = str(cell["findings"] or "").split()
    return list(zip(words[::2], words[1::2], strict=False))
