"""Risk over the rate and whatever else a grid varies, as a table of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rksp.grid.axes import canonical
from rksp.grid.table import Record

_MOST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Mean P(failed) by rate (across) and place on the other axes (down).

    Attributes:
        axes: What goes down; what else varies is averaged over.
        rates: Across, rising.
        rows: Place on `axes` → P(failed) at each rate, None where no cell has an answer.
    """

    axes: tuple[str, ...]
    rates: tuple[float, ...]
    rows: dict[str, tuple[float | None, ...]]


def heat_map(found: Sequence[Record], axes: Sequence[str]) -> HeatMap | None:
    """All other axes that vary go down, or only the first where that were more than 16 rows.

    None where fewer than two rates were looked at.
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
    """Where a record stands on these axes; a dash where an axis does not reach it."""
    values = ("–" if record.get(name) is None else str(record[name]) for name in axes)
    return " · ".join(values) or "all"


def _mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None
