"""The cells that may train as a sweep of another program: W&B, Hydra, Optuna."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rksp.grid.axes import Range, flat_parameters, sweep_axis
from rksp.ground.files import atomic_write
from rksp.ground.text import short
from rksp.recipe_files.columns import canonical
from rksp.recipe_files.parse.document import parse_yaml

Settings = Mapping[str, Any]
_PLAIN = re.compile(r"^[A-Za-z_][\w./-]*$")  # a text that Hydra reads without quotes


def export_sweep(
    cells: Sequence[Settings],
    path: Path,
    head: Settings | None = None,
    ceiling: float | None = None,
) -> str:
    """Write cells as a sweep in the format that the suffix names.

    Args:
        cells: The settings of each cell by the user's names, best first.
        path: `.yaml` for a W&B sweep, `.txt` for a line of Hydra overrides a cell, `.json` for a
            list of parameters that Optuna can enqueue.
        head: The W&B sweep that the grid came from. All but its parameters is kept, and of these
            the ranges to draw from.
        ceiling: Learning rate at which a range of it ends; None leaves the range.

    Returns:
        A note for the user; empty if there is nothing to say.
    """
    if not cells:
        return f"{path} is not written, because no cell is left."
    if path.suffix not in (".yaml", ".yml"):
        atomic_write(path, SWEEPS[path.suffix](cells))
        return ""
    ranges = _ranges(cells, head or {}, ceiling)
    atomic_write(path, to_wandb(cells, head or {}, ranges))
    if ranges:
        return _about_ranges(path, ranges, ceiling)
    extra = _product(cells) - len(cells)
    if not extra:
        return ""
    return (
        f"A W&B sweep is a product: {path} also lists {extra} combination{'s' * (extra > 1)} "
        f"outside the {len(cells)} cells. A .json or .txt file lists the cells alone."
    )


def to_wandb(
    cells: Sequence[Settings], head: Settings, ranges: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return a W&B sweep with every value that a cell has.

    Args:
        cells: The settings of each cell.
        head: The sweep that they came from. Names with dots are nested if its parameters are.
        ranges: Definitions that stand in place of a list of values, by name.
    """
    nested = any("parameters" in part for part in dict(head.get("parameters") or {}).values())
    parameters: dict[str, Any] = {}
    for name, values in _values(cells).items():
        listed = {"value": values[0]} if len(values) == 1 else {"values": values}
        place, *path = name.split(".") if nested else [name]
        inner = parameters
        while path:
            inner = inner.setdefault(place, {}).setdefault("parameters", {})
            place, *path = path
        inner[place] = dict(ranges.get(name, listed))
    sweep = {**head, "method": head.get("method", "grid"), "parameters": parameters}
    return yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True)


def _ranges(
    cells: Sequence[Settings], head: Settings, ceiling: float | None
) -> dict[str, Mapping[str, Any]]:
    """Return the ranges of a sweep's parameters; that of the learning rate ends at the ceiling.

    A range that lies above the ceiling is left out, so that the cells' own rates are listed.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, definition in flat_parameters(head.get("parameters") or {}).items():
        axis = sweep_axis(name, definition)
        if not isinstance(axis, Range) or not any(name in cell for cell in cells):
            continue
        is_rate = canonical(name) == ("recipe", "learning_rate")
        if not is_rate or ceiling is None or "normal" in axis.kind or axis.high <= ceiling:
            found[name] = definition
        elif ceiling > axis.low:
            # Bounds of W&B's log_uniform are natural exponents.
            kind = str(definition.get("distribution"))
            is_power = axis.kind == "log_uniform" and not kind.endswith("_values")
            found[name] = {**definition, "max": math.log(ceiling) if is_power else ceiling}
    return found


def _about_ranges(path: Path, ranges: Mapping[str, Any], ceiling: float | None) -> str:
    """Say where the range of the learning rate ends now."""
    rates = [name for name in ranges if canonical(name) == ("recipe", "learning_rate")]
    if not rates:
        return f"{path} keeps its ranges."
    if ceiling is None:
        return f"{path} keeps the range of {rates[0]}: rksp gives no rate not to exceed here."
    return (
        f"In {path}, {rates[0]} ends at {short(ceiling)}, the least rate not to exceed among the "
        "cells that pass."
    )


def to_hydra(cells: Sequence[Settings]) -> str:
    """Return a line of overrides for each cell, quoted as a shell reads them."""
    lines = (
        shlex.join(f"{name}={_hydra_value(value)}" for name, value in cell.items())
        for cell in cells
    )
    return "".join(f"{line}\n" for line in lines)


def to_trials(cells: Sequence[Settings]) -> str:
    """Return a JSON list of parameters, which `Study.enqueue_trial` takes one by one."""
    return json.dumps([dict(cell) for cell in cells], indent=1) + "\n"


def _values(cells: Sequence[Settings]) -> dict[str, list[Any]]:
    """Return the distinct values of each name, numbers in rising order."""
    found: dict[str, list[Any]] = {}
    for cell in cells:
        for name, value in cell.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    for values in found.values():
        if all(isinstance(value, int | float) for value in values):
            values.sort()
    return found


def _product(cells: Sequence[Settings]) -> int:
    return math.prod(len(values) for values in _values(cells).values())


def _hydra_value(value: Any) -> str:
    """Write a value in the grammar of Hydra's overrides."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_hydra_value, value))}]"
    if isinstance(value, Mapping):
        inside = (f"{_hydra_value(k)}:{_hydra_value(v)}" for k, v in value.items())
        return f"{{{','.join(inside)}}}"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.match(value) and parse_yaml(value) == value:
        return value
    # A backslash is itself, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


SWEEPS: dict[str, Callable[..., str]] = {
    ".yaml": to_wandb,
    ".yml": to_wandb,
    ".txt": to_hydra,
    ".json": to_trials,
}
