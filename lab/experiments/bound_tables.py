"""The tables of the experiment `bounds`: each arm beside the same ladders without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lab.experiments.bounds import ARMS, CHOOSING, Cell, rows
from lab.experiments.shaping import HALF, Compared, compared, halved, table_of

Ladders = dict[tuple[Cell, str], dict[float, dict[str, Any]]]


def shipped() -> str:
    """Return the tables of the runs that are stored."""
    return table(rows())


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a table for every kind of run, of the choosing and of the left-out models apart."""
    ladders: Ladders = {}
    for row in found:
        cell = Cell(**{field: row[field] for field in Cell.__dataclass_fields__})
        ladders.setdefault((cell, row["arm"]), {})[row["rate"]] = dict(row)
    parts = []
    for kind in sorted({(c.optimizer, c.batch, c.steps) for c, _ in ladders}, key=_order):
        for noun, models in (("chosen on", True), ("left out", False)):
            groups = by_arm(
                ladders,
                [
                    cell
                    for cell, arm in ladders
                    if arm == "none"
                    and (cell.optimizer, cell.batch, cell.steps) == kind
                    and (cell.model in CHOOSING) == models
                ],
            )
            if groups:
                optimizer, batch, steps = kind
                parts.append(f"{optimizer}, batch {batch}, {steps:,} steps, models {noun}:\n")
                parts.append(table_of(groups))
    return "\n".join(parts)


def _order(kind: tuple[str, int, int]) -> tuple[bool, bool, str, int, int]:
    optimizer, batch, steps = kind
    return optimizer != "adamw", batch != 16, optimizer, batch, steps


def by_arm(ladders: Ladders, cells: Sequence[Cell]) -> dict[str, list[Compared]]:
    """Return the comparisons of every arm over whole ladders of these cells."""
    found: dict[str, list[Compared]] = {}
    for cell in cells:
        plain = ladders[cell, "none"]
        if len(plain) < len(cell.rates):
            continue
        before, lost = _losses(plain), float(next(iter(plain.values()))["first"])
        ms = _ms(plain)
        found.setdefault(HALF, []).append(halved(before, lost=lost))
        for arm in (arm for arm in ARMS if arm != "none"):
            changed = ladders.get((cell, arm), {})
            if len(changed) == len(cell.rates):
                after, cost = _losses(changed), _ms(changed) / ms
                found.setdefault(arm, []).append(compared(before, after, lost=lost, cost=cost))
    return found


def _losses(rows: Mapping[float, Mapping[str, Any]]) -> dict[float, float]:
    ends = {rate: rows[rate]["final"] for rate in sorted(rows)}
    return {rate: math.inf if end is None else end for rate, end in ends.items()}


def _ms(rows: Mapping[float, Mapping[str, Any]]) -> float:
    return min(row["ms"] for row in rows.values())
