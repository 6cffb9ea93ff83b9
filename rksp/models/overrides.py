"""Apply `--set key=value`: change settings by dotted names that the configuration must have."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What can be set about a model.

    Attributes:
        known: Value by name, complete with its defaults, nested.
        renamed: Other name → name that the model type accepts too: `hidden_size` for GPT-2's
            `n_embd`.
        has_weights: The target has stored weights, which fit its own settings only.
    """

    known: Mapping[str, Any]
    renamed: Mapping[str, str] = field(default_factory=dict)
    has_weights: bool = False

    def __contains__(self, name: str) -> bool:
        is_group = name == "dropout" and bool(self.dropouts)
        return is_group or self._has(name)

    def _has(self, name: str) -> bool:
        *parents, last = name.split(".")
        here: Any = self.known
        for parent in parents:
            here = here.get(parent)
            if not isinstance(here, Mapping):
                return False
        return last in here or (not parents and self.renamed.get(last, last) in here)

    @property
    def dropouts(self) -> tuple[str, ...]:
        """The settings that `dropout` means; none where it is a setting itself."""
        if self._has("dropout"):
            return ()
        found = (n for n, v in self.known.items() if _DROPOUT.match(n) and _is_number(v))
        return tuple(sorted(found))

    def close(self, name: str) -> str:
        """Return `; did you mean a, b?`, or a full stop."""
        group = {"dropout": None} if self.dropouts else {}
        names = [*_dotted({**self.known, **group}), *self.renamed]
        last, same = name.split(".")[-1], self.renamed
        return nearest(name, names, same=same) or nearest(last, names, same=same) or "."

    def value(self, name: str) -> object:
        """Return the target's own value of a setting; None for one that has none."""
        found: object = self.known
        for part in self.renamed.get(name, name).split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def merged(self, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Apply overrides to explicit settings; lists with an entry per layer follow a new depth.

        Args:
            settings: The explicit settings of the configuration.
            overrides: Value by dotted name; a string is parsed by `parse_value`.

        Returns:
            The new settings.

        Raises:
            InputError: A name is not a setting of this model.
        """
        result = copy.deepcopy(dict(settings))
        for name, given in self._spread(overrides).items():
            value = parse_value(given) if isinstance(given, str) else given
            own = self.known.get(self.renamed.get(name, name))
            if isinstance(value, float) and value.is_integer() and _is_whole(own):
                value = int(value)  # 1e3 of a number of layers
            if not self._has(name):
                raise InputError(f"--set {name}: this model has no such setting{self.close(name)}")
            *parents, last = name.split(".")
            target, reference = result, self.known
            for parent in parents:
                inner = reference[parent]
                if not isinstance(target.get(parent), dict):
                    target[parent] = copy.deepcopy(inner)
                target, reference = target[parent], inner
            if not parents:
                last = self.renamed.get(last, last)
            if last in _DEPTHS and isinstance(value, int):
                _follow_depth(target, reference[last], value)
            target[last] = value
        return result

    def _spread(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Replace `dropout` by what it means; a setting that is given by its own name stays."""
        if "dropout" not in overrides or not self.dropouts:
            return dict(overrides)
        rest = {name: value for name, value in overrides.items() if name != "dropout"}
        return dict.fromkeys(self.dropouts, overrides["dropout"]) | rest


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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


def resized(per_layer: list[Any], depth: int) -> list[Any]:
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


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, value in settings.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
