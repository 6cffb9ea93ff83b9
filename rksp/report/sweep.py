"""A grid's results as one document, and its HTML page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from rksp.grid.axes import canonical
from rksp.grid.table import is_safe
from rksp.report.html import page
from rksp.report.issues import LEVELS
from rksp.report.schema import Part
from rksp.report.svg import short

MOST_ROWS = 500  # of the ranked table on a page; the document inside holds all
FAILED = "could not run"
MOST_PLACES = 60  # rows of the map on a page
_MOST_AXES = 8  # more are named in the table alone
_NOT_SETTINGS = ("position", "model", "reasons", "findings", "failure", "message", "verdict")
_ANSWERED = {"ok", "risk", "indeterminate", "not assessed"}
Record = dict[str, JsonValue]


class SweepReport(Part):
    """What `rksp grid --format json` prints.

    Attributes:
        cells: One record a cell, ranked: the least likely to fail first, what could not run last.
        best_safe: For each model its safe cell of the highest rate; None where there is none.
        pareto: For each model the cells that no other beats in rate and risk.
        failing: Positions of the cells that fail the gate; None: those whose verdict is a risk.
        cells_in_grid: With those that are not shown.
        profiles_made: Models that were measured; everything else follows from these.
        made_by: Versions.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["grid"] = "grid"
    cells: list[Record]
    best_safe: dict[str, Record | None]
    pareto: dict[str, list[Record]]
    failing: list[int] | None = None
    cells_in_grid: int | None = None
    profiles_made: int | None = None
    made_by: dict[str, str | int | float | bool | None] = Field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """Cells by verdict."""
        return Counter(str(cell["verdict"]) for cell in self.cells)

    @property
    def verdict(self) -> Literal["ok", "risk", "incomplete"]:
        """`incomplete` if a cell has no result, else `risk` if one fails the gate: as exit code."""
        if self.counts.keys() - _ANSWERED:
            return "incomplete"
        return "risk" if any(map(self.fails, self.cells)) else "ok"

    @cached_property
    def axes(self) -> list[str]:
        """Names of what varies, the learning rate first; a recipe's fields by their own names."""
        names = {name for cell in self.cells for name in cell}
        varied = {name for name in names if _is_setting(name) and self._varies(name)}
        fields = {name: canonical(name)[1] for name in varied}
        own = [name for name in varied if fields[name] == name or fields[name] not in names]
        return sorted(own, key=lambda name: (name != "learning_rate", name))[:_MOST_AXES]

    def _varies(self, name: str) -> bool:
        return len({str(c[name]) for c in self.cells if c.get(name) is not None}) > 1

    def fails(self, cell: Record) -> bool:
        """Whether the cell fails the gate."""
        if self.failing is None:
            return cell["verdict"] == "risk"
        return cell["position"] in self.failing

    def setting(self, cell: Record, *, but: str = "") -> str:
        """`learning_rate=6e-4 n_layer=4`: a cell by what varies, but for one axis."""
        words = [
            f"{axis}={word(cell[axis])}"
            for axis in self.axes
            if axis != but and cell.get(axis) is not None
        ]
        return " ".join(words) or str(cell["model"])

    def to_json(self) -> str:
        """Sorted keys; the same bytes for the same numbers."""
        return json.dumps(self.model_dump(), sort_keys=True, allow_nan=False, indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One row of the map: everything but the rate; cells by index, None where there is none."""

    name: str
    cells: list[int | None]


def render(report: SweepReport) -> str:
    """One file like a score's, with the results inside for machines."""
    rates = sorted({c["learning_rate"] for c in report.cells if c.get("learning_rate")})
    return page(
        "grid.html.j2",
        json.loads(report.to_json()),
        report=report,
        version=report.made_by.get("rksp", ""),
        rates=rates,
        places=places(report, rates) if len(rates) > 1 else [],
        safest=[cell["position"] for cell in report.best_safe.values() if cell],
        safe_count=sum(map(is_safe, report.cells)),
        most_places=MOST_PLACES,
        ranked=list(enumerate(report.cells[:MOST_ROWS])),
        broken=broken(report),
        complaints=complaints,
    )


def places(report: SweepReport, rates: Sequence[float]) -> list[Place]:
    """Rows of the map, in the grid's order."""
    order = sorted(range(len(report.cells)), key=lambda i: report.cells[i]["position"])
    rows: dict[str, dict[float, int]] = {}
    for i in order:
        cell = report.cells[i]
        name = report.setting(cell, but="learning_rate")
        rows.setdefault(name, {}).setdefault(cell.get("learning_rate"), i)
    return [Place(name=name, cells=[row.get(rate) for rate in rates]) for name, row in rows.items()]


def broken(report: SweepReport) -> dict[str, list[str]]:
    """Message -> settings that could not run for it."""
    found: dict[str, list[str]] = {}
    for cell in report.cells:
        if cell["verdict"] == FAILED:
            found.setdefault(str(cell["message"]), []).append(report.setting(cell))
    return found


def complaints(cell: Record) -> str:
    """`error RKSP501; warning RKSP502, RKSP503`: the cell's findings by level, worst first."""
    words = str(cell["findings"] or "").split()
    levels: dict[str, list[str]] = {level: [] for level in reversed(LEVELS)}
    for code, level in zip(words[::2], words[1::2], strict=False):
        levels.setdefault(level, []).append(code)
    return "; ".join(f"{level} {', '.join(codes)}" for level, codes in levels.items() if codes)


def word(value: object) -> str:
    """A setting's value in a table."""
    return "–" if value is None else short(value, 4) if isinstance(value, float) else str(value)


def _is_setting(name: str) -> bool:
    return name not in _NOT_SETTINGS and not name.startswith(("probability_", "safe_", "likely_"))
