"""Counts as a table with their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

Columns = Mapping[str, Callable[[Any], float]]


def named(*names: str) -> Columns:
    """Return columns of the attributes of these names."""
    return {name: attrgetter(name) for name in names}


def table(first: str, rows: Sequence[Any], columns: Columns) -> str:
    """Return rows that have a name; the last one has the sums, and of seconds the largest."""
    found = {row.name: [value(row) for value in columns.values()] for row in rows}
    each = zip(*found.values(), strict=True)
    found["all"] = [max(c) if isinstance(c[0], float) else sum(c) for c in each]
    lines = [f"{first:<26}" + "".join(f"{name:>11}" for name in columns)]
    for name, values in found.items():
        texts = [f"{value:.1f}" if isinstance(value, float) else str(value) for value in values]
        lines.append(f"{name:<26}" + "".join(f"{text:>11}" for text in texts))
    return "\n".join(lines)
