"""Read a configuration with the shipped table of model types, without transformers.

The result is what transformers would make of the same settings, or None: where the table cannot
vouch for that, the settings go to transformers itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from rksp.models.declared import HEADS, WIDTHS
from rksp.models.type_table import TypeRow, common, type_row

_PLAIN = (str, int, float, bool, type(None))
# Of settings that a type does not name, transformers interprets these and stores the others.
_INTERPRETED = frozenset(
    {
        *("num_labels", "label2id", "id2label", "torch_dtype", "dtype", "per_layer_config"),
        *("partial_rotary_factor", "rope_theta", "rope_scaling", "rope_parameters"),
        *("name_or_path", "attn_implementation", "output_attentions", "return_dict"),
    }
)
_SCALED = ("default", "linear", "llama3", "yarn")
_MISSING = object()


class TableConfig:
    """A configuration whose settings are attributes, under all their names.

    Args:
        settings: The complete settings; nested configurations are of this class.
        row: The table's row of its type.
        attributes: What the type computes from them.
    """

    def __init__(
        self, settings: dict[str, Any], row: TypeRow, attributes: Mapping[str, Any]
    ) -> None:
        self._settings, self._row, self._attributes = settings, row, attributes

    @property
    def attribute_map(self) -> Mapping[str, str]:
        """Other name → name, as transformers calls it."""
        return self._row.aliases

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        name = self._row.aliases.get(name, name)
        for values in (self._settings, self._attributes):
            if name in values:
                return values[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._settings[self._row.aliases.get(name, name)] = value

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, nested and complete, as transformers would."""
        return {
            name: value._as_part() if isinstance(value, TableConfig) else copy.deepcopy(value)
            for name, value in self._settings.items()
        }

    def _as_part(self) -> dict[str, Any]:
        return {k: v for k, v in self.to_dict().items() if k != "transformers_version"}


def table_config(settings: Mapping[str, Any], row: TypeRow | None = None) -> TableConfig | None:
    """Read settings with the table; None where it cannot vouch for the result.

    Args:
        settings: Sanitized settings, of which `model_type` is one.
        row: The row of its type, by default that of the table.
    """
    row = row or type_row(str(settings.get("model_type")))
    if row is None:
        return None
    given = {row.aliases.get(name, name): value for name, value in settings.items()}
    unnamed = {*common().generation} - {*row.settings}
    given = {name: value for name, value in given.items() if name not in unnamed}
    if row.has_rope:
        rope = _rope(row, given)
        if rope is None:
            return None
        given["rope_parameters"] = rope
    state = dict(row.settings) | dict(row.attributes)
    later = {}  # lists and computed settings, which must agree with the rules
    for name, value in given.items():
        default = state.get(name, _MISSING)
        if name in row.parts:
            continue
        if name in row.rules and value is not None:
            later[name] = value
        elif name in row.rules or _same(value, default) or name in _KEPT:
            continue
        elif name == "rope_parameters" and row.has_rope:
            state[name] = value
        elif not _is_sure(row, name, value, default):
            return None
        else:
            state[name] = value
    for name, value in _computed(row, state, later):
        if name in later and not _agrees(row, name, later[name], value):
            return None
        state[name] = later.get(name, value)
    for name in row.parts:
        part = _part(state[name], given.get(name))
        if part is None and state[name] is not None:
            return None
        state[name] = part
    if not _divides(row, state):
        return None
    attributes = {name: state.pop(name) for name in row.attributes}
    if "transformers_version" in given:
        attributes["transformers_version"] = given["transformers_version"]
    return TableConfig(state, row, attributes)


def has_parts(settings: Mapping[str, Any]) -> bool:
    """Tell whether the table says that this type has configurations in it."""
    row = type_row(str(settings.get("model_type")))
    return row is not None and bool(row.parts)


_KEPT = ("model_type", "transformers_version")


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def _is_sure(row: TypeRow, name: str, value: Any, default: Any) -> bool:
    """Tell whether transformers stores this value as it is and changes nothing else."""
    if default is _MISSING:
        is_stored = isinstance(value, _PLAIN) or _is_list(value)
        return is_stored and name not in _INTERPRETED and name not in common().interpreted
    if name == "architectures":
        return value is None or _is_list(value)
    if name in row.unsure:
        return False
    if name.endswith("_token_id"):
        return value is None or _is_list(value) or (_is_int(value) and value >= 0)
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if default is None or isinstance(default, int):
        return _is_int(value) and value > 0
    if isinstance(default, float):
        return isinstance(value, float)
    return isinstance(default, str) and isinstance(value, str) and name.endswith("_act")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, _PLAIN) for item in value)


def _rope(row: TypeRow, given: dict[str, Any]) -> dict[str, Any] | None:
    """Take the settings of rotary positions out of `given`, and return them as one setting."""
    default = row.settings["rope_parameters"]
    theta = given.pop("rope_theta", None)
    scaling = given.pop("rope_scaling", None) or given.pop("rope_parameters", None)
    if "partial_rotary_factor" in given:
        return None
    if scaling is None:
        return dict(default) if theta is None else {**default, "rope_theta": theta}
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _SCALED or any(isinstance(value, Mapping) for value in scaling.values()):
        return None
    theta = default["rope_theta"] if theta is None else theta
    return {"rope_theta": theta, **scaling, "rope_type": kind}


def _computed(
    row: TypeRow, state: Mapping[str, Any], later: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the settings that follow from others; a rule may use what an earlier one gave."""
    for name, (rule, *of) in row.rules.items():
        if rule == "ratio":
            factor, source = of
            yield name, _whole(factor * state[source])
        elif rule == "quotient":
            first, second = of
            yield name, state[first] // state[second]
        else:
            source, pattern = of
            yield name, [pattern[i % len(pattern)] for i in range(state[source])]


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _agrees(row: TypeRow, name: str, given: Any, computed: Any) -> bool:
    """Tell whether a given value may stand in the place of a computed one."""
    if row.rules[name][0] == "cycle":
        return given == computed
    return _is_int(given) and given > 0 and name not in row.unsure


def _part(default: Any, given: Any) -> TableConfig | None:
    """Read a nested configuration: the given settings, or else the parent's default ones."""
    if default is None or not isinstance(given, Mapping | None):
        return None
    settings = default if given is None else given
    kind = settings.get("model_type") or default.get("model_type")
    return table_config({**settings, "model_type": kind})


def _divides(row: TypeRow, state: Mapping[str, Any]) -> bool:
    """Tell whether every width that its heads divide by default is still divided by them."""
    for width in WIDTHS:
        for heads in HEADS:
            sizes: list[Any] = [
                (values.get(width), values.get(heads)) for values in (row.settings, state)
            ]
            if not all(_is_int(size) and size > 0 for pair in sizes for size in pair):
                continue
            (before, by), (after, now) = sizes
            if before % by == 0 and after % now:
                return False
    return True
