"""Risk by learning rate and the other axes of a grid, as a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rksp.grid.axes import canonical
from rksp.grid.table import Record

_MOST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Mean P(failed) by learning rate (columns) and place on the other axes (rows).

    Attributes:
        axes: The axes of the rows; all other axes are averaged over.
        rates: The learning rates of the columns, ascending.
        rows: Place on `axes` → P(failed) at each rate, None where no cell has an answer.
    """

    axes: tuple[str, ...]
    rates: tuple[float, ...]
    rows: dict[str, tuple[float | None, ...]]


def heat_map(found: Sequence[Record], axes: Sequence[str]) -> HeatMap | None:
    """Return P(failed) by learning rate and by all other axes that vary.

    If these would give more than 16 rows, only the first of them is kept. The result is None if
    there are fewer than two rates.
    """
    rates = sorted({r["learning_rate"] for r in found if r.get("learning_rate")})
    if len(rates) < 2:
        return None
    ordered = sorted(found, key=lambda r: r["position"])
    others = [n for n in axes if canonical(n) != ("recipe", "learning_rate")]
    others = [n for n in others if len({str(r[n]) for r in found if r.get(n) is not None}) > 1]
    if len({place(r, others) for r in ordered}) > _MOST_ROWS:
        others = others[:1]
    seen: dict[tuple[str, float], list[float]] = {}
    for r in ordered:
        if r["probability_failed"] is not None and r.get("learning_rate"):
            at = place(r, others), r["learning_rate"]
            seen.setdefault(at, []).append(r["probability_failed"])
    names = dict.fromkeys(place(r, others) for r in ordered)
    rows = {name: tuple(_mean(seen.get((name, rate))) for rate in rates) for name in names}
    return HeatMap(axes=tuple(others), rates=tuple(rates), rows=rows)


def place(record: Record, axes: Sequence[str]) -> str:
    """Return a record's values on these axes; a dash stands for a missing value."""
    values = ("–" if record.get(name) is None else str(record[name]) for name in axes)
    return " · ".join(values) or "all"


def _mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None
