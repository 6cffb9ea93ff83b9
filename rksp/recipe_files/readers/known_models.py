"""Models that trainers call by names of their own, in the words of transformers: `models.toml`.

`shape_of` is for runs that start from random weights: a model type and the settings to change.
`hub_id_of` is for runs that start from a folder of downloaded weights.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Shape = tuple[str, Mapping[str, object]]


@cache
def _known() -> dict[str, Any]:
    with (Path(__file__).parents[1] / "models.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _shapes() -> dict[str, Shape]:
    found = {}
    for family in _known()["families"]:
        shared = family.get("shared", {}) | dict.fromkeys(family.get("absent", "").split())
        for name, row in family["models"].items():
            sizes = dict(zip(family["columns"].split(), row, strict=False))
            found[name] = (family["type"], sizes | shared)
    return found


def shape_of(name: str) -> Shape | None:
    """Look up model type and settings by a trainer's model name, or by its longest known prefix."""
    plain = name.lower().replace("-", "_").replace(":", "_").replace("/", "_")
    known = [key for key in _shapes() if plain == key or plain.startswith(f"{key}_")]
    return _shapes()[max(known, key=len)] if known else None


def hub_id_of(folder: str) -> str | None:
    """Return the Hub id of a folder of weights that has the name of its repository."""
    parts = [part for part in folder.replace("\\", "/").split("/") if part]
    parts = [part for part in parts if part not in ("original", "tmp", "checkpoints", ".")]
    if not parts or "<" in folder:
        return None
    name = parts[-1]
    plain = name.lower().replace("-", "_")
    owners = _known()["owners"].items()
    owner = next((one for one, starts in owners if plain.startswith(tuple(starts.split()))), None)
    return f"{owner}/{name}" if owner is not None else None
