"""The document of `rksp grid`: every cell's answer, ranked."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from pydantic import ConfigDict, Field

from rksp.documents.base import Document, Part
from rksp.ground.model import Finite, Strict

FAILED = "could not run"  # the verdict of a cell whose evaluation ended in an error
_EXIT_CODES = {"ok": 0, "risk": 1, "unusable": 2, "incomplete": 3}


class FoundLevel(Strict):
    """A finding of a cell: its code and its level."""

    code: str
    level: str


class CellNumbers(Part, Finite):
    """The numbers of a cell; most fields are those of `rksp.documents.answer`.

    Attributes:
        probability_failed_low: The lower end of the interval of P(failed).
        probability_failed_high: The upper end.
        lever_factor: By how much the lever raises the likely edge.
    """

    probability_failed: float | None = None
    probability_failed_low: float | None = None
    probability_failed_high: float | None = None
    probability_diverged: float | None = None
    start_here: float | None = None
    likely_edge: float | None = None
    do_not_exceed: float | None = None
    expected_excess: float | None = None
    lever: str | None = None
    lever_factor: float | None = None
    findings: tuple[FoundLevel, ...] = ()


NUMBERS = tuple(
    name for name, field in CellNumbers.model_fields.items() if field.annotation == float | None
)[:-1]  # all but the lever's


class Record(CellNumbers):
    """One cell of a grid.

    Beside these fields it has a column for each value that the grid varies, by the name that the
    user gave, each field of its recipe, and each setting of its model (`set.n_layer`).

    Attributes:
        position: Its number in the grid, counted from 0.
        learning_rate: The peak rate of its recipe; None where it has none.
        model: The target with its overrides.
        verdict: The word, or the state of a cell without a result.
        reasons: Why rksp cannot tell.
        failure: The kind of failure of a cell that could not run; `message` says what was wrong.
    """

    model_config = ConfigDict(extra="allow")
    position: int
    model: str
    target: str
    seed: int
    learning_rate: float | None = None
    verdict: str
    reasons: str = ""
    failure: str | None = None
    message: str | None = None

    @property
    def columns(self) -> dict[str, object]:
        """All columns by name: the cell, what was asked of it, and the answer."""
        own, head = self.__dict__, ("position", "model", "target", "seed")
        return {**{name: own[name] for name in head}, **(self.__pydantic_extra__ or {}), **own}

    def get(self, name: str) -> object:
        """Return the value in a column; None where the cell has none."""
        own = self.__dict__
        return own[name] if name in own else (self.__pydantic_extra__ or {}).get(name)

    @property
    def levels(self) -> set[str]:
        """The levels of its findings."""
        return {finding.level for finding in self.findings}


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
        cells: Those that are shown, ranked: the least expected loss first, what could not run
            last.
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
        return Counter(cell.verdict for cell in [*self.cells, *self.hidden])

    def fails(self, cell: Record) -> bool:
        """Return True if the cell fails the gate."""
        return cell.position in self.failing
