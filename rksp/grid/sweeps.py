"""The cells that may train as a sweep of another program: W&B, Hydra, Optuna."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from rksp.grid.plan import load_grid_file
from rksp.ground.files import atomic_write
from rksp.recipe_files.parse.document import parse_yaml

Settings = Mapping[str, object]
_PLAIN = re.compile(r"^[A-Za-z_][\w./-]*$")  # a text that Hydra reads without quotes


def export_sweep(cells: Sequence[Settings], path: Path, head: Settings | None = None) -> str:
    """Write cells as a sweep in the format that the suffix names.

    Args:
        cells: The settings of each cell by the user's names, best first.
        path: `.yaml` for a W&B sweep, `.txt` for a line of Hydra overrides a cell, `.json` for a
            list of parameters that Optuna can enqueue.
        head: The W&B sweep that the grid came from; all but its parameters is kept.

    Returns:
        A note for the user; empty if there is nothing to say.
    """
    if not cells:
        return f"{path} is not written, because no cell is left."
    write = SWEEPS[path.suffix]
    atomic_write(path, write(cells, head or {}))
    extra = _product(cells) - len(cells) if write is to_wandb else 0
    if not extra:
        return ""
    return (
        f"A W&B sweep is a product: {path} also lists {extra} combinations that are not among "
        f"the {len(cells)} cells. A .json or .txt file lists the cells alone."
    )


def sweep_head(source: str) -> dict[str, object]:
    """Return a W&B sweep without its parameters; empty where the grid came from elsewhere."""
    path = Path(source)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return {}
    data = load_grid_file(path).data
    return dict(data) if "parameters" in data else {}


def to_wandb(cells: Sequence[Settings], head: Settings) -> str:
    """Return a W&B sweep with every value that a cell has.

    Names with dots are nested if the head's parameters are.
    """
    nested = any("parameters" in part for part in dict(head.get("parameters") or {}).values())
    parameters: dict[str, object] = {}
    for name, values in _values(cells).items():
        held = {"value": values[0]} if len(values) == 1 else {"values": values}
        place, *path = name.split(".") if nested else [name]
        inner = parameters
        while path:
            inner = inner.setdefault(place, {}).setdefault("parameters", {})
            place, *path = path
        inner[place] = held
    sweep = {**head, "method": "grid", "parameters": parameters}
    sweep.pop("early_terminate", None)  # for adaptive sweeps
    return yaml.safe_dump(sweep, sort_keys=False, allow_unicode=True)


def to_hydra(cells: Sequence[Settings], head: Settings) -> str:
    """Return a line of overrides for each cell, quoted as a shell reads them."""
    lines = (
        shlex.join(f"{name}={_hydra_value(value)}" for name, value in cell.items())
        for cell in cells
    )
    return "".join(f"{line}\n" for line in lines)


def to_trials(cells: Sequence[Settings], head: Settings) -> str:
    """Return a JSON list of parameters, which `Study.enqueue_trial` takes one by one."""
    return json.dumps([dict(cell) for cell in cells], indent=1) + "\n"


def _values(cells: Sequence[Settings]) -> dict[str, list[object]]:
    """Return the distinct values of each name, numbers in rising order."""
    found: dict[str, list[object]] = {}
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


def _hydra_value(value: object) -> str:
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


SWEEPS = {".yaml": to_wandb, ".yml": to_wandb, ".txt": to_hydra, ".json": to_trials}
