"""Apply `--set key=value`: change settings by dotted names that the configuration must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rksp.ground.errors import InputError, nearest

_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# What a forward pass drops; not the layers that only a classification head has.
_DROPOUT = re.compile(r"^(?!(summary|classifier|pooler)_).*?(^|_)(dropout|pdrop)(_|$)")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None}


def parse_value(text: str) -> Any:
    """Parse a scalar by the rules of YAML 1.2, or a JSON list or object.

    Unlike in PyYAML (YAML 1.1), `1e-4` is a number and `no` is a string.
    """
    stripped = text.strip()
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        pass
    try:
        return int(stripped.replace("_", ""))
    except ValueError:
        pass
    try:
        return float(stripped)
    except ValueError:
        return stripped


def merge(
    settings: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    known: Mapping[str, Any],
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Apply overrides to settings; lists with an entry per layer follow a new depth.

    Args:
        settings: The explicit settings of the configuration.
        overrides: Value by dotted name; a string is parsed by `parse_value`.
        known: The complete configuration with its defaults, nested; names must be in it.
        renamed: Other names that the model type accepts for its settings, such as
            `hidden_size` for GPT-2's `n_embd`.

    Returns:
        The new settings.

    Raises:
        InputError: A name is not a setting of this model.
    """
    renamed = renamed or {}
    result = _copy(settings)
    for name, given in _spread(overrides, known, renamed).items():
        value = parse_value(given) if isinstance(given, str) else given
        if isinstance(value, float) and value.is_integer() and _is_whole(name, known, renamed):
            value = int(value)  # 1e3 of a number of layers
        if not is_setting(name, known, renamed):
            raise InputError(
                f"--set {name}: this model has no such setting{close(name, known, renamed)}"
            )
        *parents, last = name.split(".")
        target, reference = result, known
        for parent in parents:
            inner = reference[parent]
            if not isinstance(target.get(parent), dict):
                target[parent] = _copy(inner)
            target, reference = target[parent], inner
        if not parents:
            last = renamed.get(last, last)
        if last in _DEPTHS and isinstance(value, int):
            _follow_depth(target, reference[last], value)
        target[last] = value
    return result


def _is_whole(name: str, known: Mapping[str, Any], renamed: Mapping[str, str]) -> bool:
    """Tell whether the value of a setting is a whole number."""
    found = known.get(renamed.get(name, name))
    return isinstance(found, int) and not isinstance(found, bool)


def is_setting(name: str, known: Mapping[str, Any], renamed: Mapping[str, str]) -> bool:
    """Tell whether a dotted name is a setting of a configuration; arguments as for `merge`."""
    *parents, last = name.split(".")
    here: Any = known
    for parent in parents:
        here = here.get(parent)
        if not isinstance(here, Mapping):
            return False
    return last in here or (not parents and renamed.get(last, last) in here)


def dropouts(known: Mapping[str, Any], renamed: Mapping[str, str]) -> tuple[str, ...]:
    """Return the settings that `dropout` means for a type that has no setting of this name."""
    if is_setting("dropout", known, renamed):
        return ()
    return tuple(
        sorted(
            name
            for name, value in known.items()
            if _DROPOUT.match(name) and isinstance(value, int | float)
        )
    )


def _spread(
    overrides: Mapping[str, Any], known: Mapping[str, Any], renamed: Mapping[str, str]
) -> dict[str, Any]:
    """Replace `dropout` by what it means; a setting that is given by its own name stays."""
    if "dropout" not in overrides or not dropouts(known, renamed):
        return dict(overrides)
    rest = {name: value for name, value in overrides.items() if name != "dropout"}
    return dict.fromkeys(dropouts(known, renamed), overrides["dropout"]) | rest


def _follow_depth(target: dict[str, Any], old: Any, new: int) -> None:
    for key, value in list(target.items()):
        if isinstance(value, list) and isinstance(old, int) and len(value) == old and new >= 1:
            target[key] = resized(value, new)
        elif isinstance(value, str) and "pattern" in key and len(value) == old and new >= 1:
            target[key] = "".join(resized(list(value), new))  # one letter per layer
        elif is_by_layer(value):
            target[key] = {layer: item for layer, item in value.items() if int(layer) < new}


def is_by_layer(value: Any) -> bool:
    """Tell whether a setting is a table by layer index."""
    return isinstance(value, Mapping) and bool(value) and all(str(key).isdigit() for key in value)


def resized(per_layer: list, depth: int) -> list:
    """Cut or repeat a list with an entry per layer; keep every kind of layer if possible."""
    result = [per_layer[i % len(per_layer)] for i in range(depth)]
    try:
        kinds = list(dict.fromkeys(per_layer))
    except TypeError:  # entries that are lists or objects
        return result
    lost = [kind for kind in kinds if kind not in result]
    if lost and len(kinds) <= depth:
        result[-len(lost) :] = lost
    return result


def close(name: str, known: Mapping[str, Any], renamed: Mapping[str, str]) -> str:
    """Return the end of a sentence: the settings whose names are the nearest, if any are near."""
    names = [*_dotted(known), *renamed]
    found = nearest(name, names, same=renamed) or nearest(name.split(".")[-1], names, same=renamed)
    return found or "."


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, value in settings.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")


def _copy(settings: Mapping) -> dict:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in settings.items()}
