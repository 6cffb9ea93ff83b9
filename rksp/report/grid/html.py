"""The HTML page of a grid: the ranking, the risk map, and the cells that could not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from rksp.documents.grid import GridReport
from rksp.recipe_files.said.origin import line_of
from rksp.report.grid.settings import Settings, assumed_run, by_level, first_lever
from rksp.report.pages import page

MOST_ROWS = 500  # of the ranked table on a page; the document inside holds all
MOST_PLACES = 60  # rows of the map on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One row of the map: everything but the rate; cells by index, None where there is none."""

    name: str
    cells: list[int | None]


def render(report: GridReport) -> str:
    """Render a page like a score's, with the results' JSON inside."""
    rates = sorted({c["learning_rate"] for c in report.cells if c.get("learning_rate")})
    setting = Settings(report)
    is_binned = report.risk_map is not None and report.risk_map.is_binned
    return page(
        "grid.html.j2",
        report.content(),
        report=report,
        setting=setting,
        version=report.made_by.get("rksp", ""),
        rates=rates,
        places=[] if len(rates) < 2 or is_binned else places(report, setting, rates),
        risk_map=report.risk_map if is_binned else None,
        assumed=line_of(report.assumed),
        assumed_run=partial(assumed_run, report),
        safest=[cell["position"] for cell in report.best_safe.values() if cell],
        most_places=MOST_PLACES,
        ranked=list(enumerate(report.cells[:MOST_ROWS])),
        broken=setting.broken(report.cells),
        complaints=by_level,
        first_lever=first_lever,
    )


def places(report: GridReport, setting: Settings, rates: Sequence[float]) -> list[Place]:
    """Return the rows of the map, in the grid's order."""
    order = sorted(range(len(report.cells)), key=lambda i: report.cells[i]["position"])
    rows: dict[str, dict[float, int]] = {}
    for i in order:
        cell = report.cells[i]
        name = setting(cell, but="learning_rate")
        rows.setdefault(name, {}).setdefault(cast(float, cell.get("learning_rate")), i)
    return [Place(name=name, cells=[row.get(rate) for rate in rates]) for name, row in rows.items()]
