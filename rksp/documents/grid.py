"""The document of `rksp grid`: every cell's answer, ranked."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import Field

from rksp.documents.base import Document, Part

FAILED = "could not run"  # the verdict of a cell whose evaluation ended in an error
_EXIT_CODES = {"ok": 0, "risk": 1, "unusable": 2, "incomplete": 3}
Record = dict[str, Any]  # nobody knows which column holds what; JSON refuses what it cannot write


class RiskRow(Part):
    """One row of a map.

    Attributes:
        name: Its place on the map's axes.
        probabilities: Mean P(failed) of the cells in each column; None where none has an answer.
    """

    name: str
    probabilities: list[float | None]


class RiskMap(Part):
    """Mean P(failed) by learning rate (columns) and place on the other axes (rows).

    Attributes:
        axes: The axes of the rows; all other axes are averaged over.
        rates: The least learning rate of each column, ascending.
        is_binned: A column holds all rates up to the next column's, not one rate.
        rows: One for each place on the axes of the rows.
    """

    axes: list[str]
    rates: list[float]
    is_binned: bool
    rows: list[RiskRow]


class GridReport(Document):
    """One run of `rksp grid`.

    The verdict is about every cell, shown or not: `unusable` if none could run for what was given,
    `incomplete` if one has no result, else `risk` if one fails the gate.

    Attributes:
        cells: One record a cell that is shown, ranked: the least expected loss first, what could
            not run last. Its `findings` is a list of `code` and `level`.
        cells_in_grid: Number of cells, with those that are not shown.
        axes: What varies, by the names that the user gave.
        best_safe: For each model its safe cell of the least expected loss, or None.
        failing: Positions of the shown cells that fail the gate.
        profiles_made: Models that were measured; everything else follows from these.
        made_by: Versions.
        assumed: What nobody decided about the cells' recipes, in words by the recipe's field.
        risk_map: P(failed) of every cell, shown or not; None with fewer than two rates.
        hidden: Cells that are not shown. They are not written; the terminal counts their failures.
    """

    kind: Literal["grid"] = "grid"
    verdict: Literal["ok", "risk", "incomplete", "unusable"]
    cells: list[Record]
    cells_in_grid: int
    axes: list[str]
    best_safe: dict[str, Record | None]
    failing: list[int]
    profiles_made: int
    made_by: dict[str, str | int | float | bool | None]
    assumed: dict[str, str] = Field(default_factory=dict)
    risk_map: RiskMap | None = None
    hidden: list[Record] = Field(default_factory=list, exclude=True)

    @property
    def exit_code(self) -> int:
        """0, 1 for a risk, 2 where nothing given is usable, 3 where a cell has no result, or 4."""
        return super().exit_code if self.verdict == "ok" else _EXIT_CODES[self.verdict]

    @property
    def counts(self) -> Counter[str]:
        """All cells by verdict, shown or not."""
        return Counter(str(cell["verdict"]) for cell in [*self.cells, *self.hidden])

    def fails(self, cell: Record) -> bool:
        """Return True if the cell fails the gate."""
        return cell["position"] in self.failing
