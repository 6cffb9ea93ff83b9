"""A run's settings as Weights & Biases logs them: `key: {desc: null, value: …}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OWN = ("_wandb", "wandb_version")  # what W&B says of itself


def is_logged(data: Mapping[str, Any]) -> bool:
    """Tell whether every setting, and more than one, is wrapped."""
    inner = [value for key, value in data.items() if key not in _OWN]
    return len(inner) >= 2 and all(_is_wrapped(value) for value in inner)


def unwrapped(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings alone."""
    return {
        key: value["value"] for key, value in data.items() if key not in _OWN and _is_wrapped(value)
    }


def unwrapped_lines(lines: Mapping[str, int]) -> dict[str, int]:
    """Return the lines of the settings by their keys without `value`."""
    found = {}
    for key, line in lines.items():
        parts = key.split(".")
        if len(parts) > 1 and parts[1] == "value":
            inner = ".".join((parts[0], *parts[2:]))
            found[inner] = line if len(parts) > 2 else lines[parts[0]]
    return found


def _is_wrapped(value: object) -> bool:
    return isinstance(value, Mapping) and "value" in value
