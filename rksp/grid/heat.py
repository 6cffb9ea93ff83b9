"""Risk by learning rate and the other axes of a grid, as a table of numbers."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from rksp.documents.grid import RiskMap, RiskRow
from rksp.grid.table import Record
from rksp.recipe_files.columns import canonical

_MOST_ROWS = 16
_MOST_COLUMNS = 20


def heat_map(found: Sequence[Record], axes: Sequence[str]) -> RiskMap | None:
    """Return mean P(failed) by learning rate and by the other axes that vary.

    If all of these would give more than 16 rows, only the first that gives fewer is kept. More than
    20 rates, as a random sweep draws them, are put into 20 columns of equal width in decades.

    Returns:
        The map; None if there are fewer than two rates.
    """
    rates = sorted({r["learning_rate"] for r in found if r.get("learning_rate")})
    if len(rates) < 2:
        return None
    columns = _columns(rates)
    ordered = sorted(found, key=lambda r: r["position"])
    others = _axes(ordered, [n for n in axes if canonical(n) != ("recipe", "learning_rate")])
    names = [place(r, others) for r in ordered]
    seen: dict[tuple[str, int], list[float]] = {}
    for name, r in zip(names, ordered, strict=True):
        if r["probability_failed"] is not None and r.get("learning_rate"):
            column = bisect.bisect_right(columns, r["learning_rate"]) - 1
            seen.setdefault((name, column), []).append(r["probability_failed"])
    return RiskMap(
        axes=others,
        rates=columns,
        is_binned=len(columns) < len(rates),
        rows=[
            RiskRow(
                name=name, probabilities=[_mean(seen.get((name, i))) for i in range(len(columns))]
            )
            for name in dict.fromkeys(names)
        ],
    )


def place(record: Record, axes: Sequence[str]) -> str:
    """Return a record's values on these axes; a dash stands for a missing value."""
    values = ("–" if record.get(name) is None else str(record[name]) for name in axes)
    return " · ".join(values) or "all"


def _columns(rates: Sequence[float]) -> list[float]:
    """Return the least rate of each column."""
    if len(rates) <= _MOST_COLUMNS:
        return list(rates)
    low, high = math.log10(rates[0]), math.log10(rates[-1])
    width = (high - low) / _MOST_COLUMNS
    return [rates[0], *(10 ** (low + i * width) for i in range(1, _MOST_COLUMNS))]


def _axes(found: Sequence[Record], axes: Sequence[str]) -> list[str]:
    """Return the axes of the rows; the map averages over all others, but not over optimizers."""
    varied = [n for n in axes if len({str(r[n]) for r in found if r.get(n) is not None}) > 1]
    rules = [n for n in varied if canonical(n) == ("recipe", "optimizer")]
    for kept in (varied, *([*rules, n] for n in varied if n not in rules), rules):
        if len({place(r, kept) for r in found}) <= _MOST_ROWS:
            return kept
    return []


def _mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None
