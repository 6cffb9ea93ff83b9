"""The shipped table of model types: what transformers' default configurations declare.

`defaults.jsonl` holds a type a line, made by `python -m lab.bench.type_table` from the release of
transformers that its first line names. Only the line of a type that is asked for is parsed.
`table_config` reads settings with it: the result is what transformers would make of them, or None
where the table cannot vouch for that, and they go to transformers itself.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeGuard

FILE = "defaults.jsonl"
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """What the table says of one model type.

    Attributes:
        settings: The default settings by name, complete and nested.
        aliases: Other name → name, such as `hidden_size` → `n_embd`.
        attributes: Values that the class computes and does not store.
        parts: Names of the settings that are configurations themselves.
        rules: Setting → the rule that gives it from others where it is not given itself:
            `["ratio", factor, name]`, `["quotient", name, name]` or `["cycle", depth, list]`.
        unsure: Settings whose change the rules do not describe.
        optional, zeros: Settings that may be None, or 0, although they are not by default.
        lists: Settings that may be any list.
        off: Settings that stay None until others, which are unsure, switch them on.
        interpreted: Settings that the type takes for others without naming them.
        fixed_parts: Parts whose type the class decides, whatever `model_type` they give.
        has_rope: `rope_theta`, `partial_rotary_factor` and `rope_scaling` become its
            `rope_parameters`.
        heads: Task, `base` or `whole` → names of transformers' classes.
        counted: Parameters of the model that rksp builds from the defaults; None where it cannot.
    """

    settings: Mapping[str, object]
    aliases: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, object] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    rules: Mapping[str, list[Any]] = field(default_factory=dict)
    unsure: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    interpreted: tuple[str, ...] = ()
    fixed_parts: tuple[str, ...] = ()
    has_rope: bool = False
    heads: Mapping[str, list[str]] = field(default_factory=dict)
    counted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all rows share.

    Attributes:
        transformers: The release that the table was made with.
        settings: Settings that nearly every type has, with their values.
        generation: Settings of text generation, which a configuration drops.
    """

    transformers: str
    settings: Mapping[str, object]
    generation: tuple[str, ...]


@cache
def _lines() -> dict[str, str]:
    text = files("rksp.models").joinpath(FILE).read_text("utf-8")
    return dict(line.split("\t", 1) for line in text.splitlines())


@cache
def common() -> Common:
    """Return what all rows share."""
    return Common(**json.loads(_lines()[""]))


def type_names() -> frozenset[str]:
    """Return the model types of the table."""
    return frozenset(_lines()) - {""}


@cache
def type_row(name: str) -> TypeRow | None:
    """Return the row of a model type; None if the table lacks it. Do not change its values."""
    line = _lines().get(name)
    if line is None or not name:
        return None
    row = json.loads(line)
    missing = row.pop("without", ())
    shared = {k: v for k, v in common().settings.items() if k not in missing}
    return TypeRow(**row | {"settings": shared | row["settings"]})


_PLAIN = (str, int, float, bool, type(None))
# Of settings that a type does not name, every type interprets these, some more of its own.
_INTERPRETED = frozenset(
    {
        *("num_labels", "label2id", "id2label", "torch_dtype", "dtype", "per_layer_config"),
        *("partial_rotary_factor", "rope_theta", "rope_scaling", "rope_parameters"),
        *("name_or_path", "attn_implementation", "output_attentions", "return_dict"),
        *("layer_types", "mlp_layer_types", "head_dim", "num_heads", "embed_dim"),
        *("encoder", "decoder", "generator", "text_encoder"),
    }
)
_SCALED = ("default", "linear", "llama3", "yarn")
_STRETCHED = ("llama3", "yarn")  # else from the length before it was stretched
ACTIVATIONS = ("_act", "activation", "activation_function")
ROPE = ("rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters")
_KEPT = ("model_type", "transformers_version")
_MISSING = object()


class Config(Protocol):
    """A configuration: one of transformers, or of the table."""

    model_type: str

    def to_dict(self) -> dict[str, Any]:
        """Return the settings, nested and complete."""


class TableConfig:
    """A configuration whose settings are attributes, under all their names.

    Args:
        settings: The complete settings; nested configurations are of this class.
        row: The table's row of its type.
        attributes: What the type computes from them.
    """

    model_type: str

    def __init__(
        self, settings: dict[str, object], row: TypeRow, attributes: Mapping[str, object]
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

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self._settings[self._row.aliases.get(name, name)] = value

    def to_dict(self) -> dict[str, object]:
        """Return the settings, nested and complete, as transformers would."""
        parts = {n: v.to_dict() for n, v in self._settings.items() if isinstance(v, TableConfig)}
        for part in parts.values():
            part.pop("transformers_version", None)
        return {n: parts.get(n) or copy.deepcopy(v) for n, v in self._settings.items()}


def table_config(settings: Mapping[str, object], row: TypeRow | None = None) -> TableConfig | None:
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
        usual = row.settings["rope_parameters"]
        rope = rope_parameters(usual, given) if isinstance(usual, Mapping) else None
        if rope is None:
            return None
        given = {k: v for k, v in given.items() if k not in ROPE} | {"rope_parameters": rope}
    state = dict(row.settings) | dict(row.attributes)
    later = {}  # lists and computed settings, which must agree with the rules
    for name, value in given.items():
        default = state.get(name, _MISSING)
        if name in row.parts:
            continue
        if name in row.rules and value is not None:
            later[name] = value
        elif name in row.rules or _same(value, default) or name in (*_KEPT, *row.off):
            continue
        elif name == "rope_parameters" and row.has_rope:
            state[name] = value
        elif not _is_sure(row, name, value, default):
            return None
        else:
            state[name] = value
    for name, value in _computed(row, state):
        if name in later and not _agrees(row, name, later[name], value):
            return None
        state[name] = later.get(name, value)
    for name in row.parts:
        part = _part(state[name], given.get(name), is_fixed=name in row.fixed_parts)
        if part is None and state[name] is not None:
            return None
        state[name] = part
    if not _divides(row, state):
        return None
    attributes = {name: state.pop(name) for name in row.attributes}
    if "transformers_version" in given:
        attributes["transformers_version"] = given["transformers_version"]
    return TableConfig(state, row, attributes)


def _same(value: object, default: object) -> bool:
    """Tell whether two values are the same to the last type: 150000 is not 150000.0."""
    if isinstance(value, Mapping) and isinstance(default, Mapping):
        return value.keys() == default.keys() and all(_same(value[k], default[k]) for k in value)
    if isinstance(value, list) and isinstance(default, list):
        return len(value) == len(default) and all(map(_same, value, default))
    return type(value) is type(default) and value == default


def _is_sure(row: TypeRow, name: str, value: object, default: object) -> bool:
    if default is _MISSING:
        is_part = isinstance(value, Mapping) and name.endswith("config")
        return not is_part and name not in _INTERPRETED and name not in row.interpreted
    if name == "architectures":
        return value is None or _is_list(value)
    if name in row.unsure:
        return False
    if value is None or value == 0:
        is_stored = name in (row.optional if value is None else row.zeros)
        return is_stored or _is_usual(name, value, default)
    return _is_usual(name, value, default) or (name in row.lists and _is_list(value))


def _is_usual(name: str, value: object, default: object) -> bool:
    if name.endswith("_token_id"):
        return value is None or _is_list(value) or (_is_int(value) and value >= 0)
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if default is None or isinstance(default, int):
        return _is_int(value) and value > 0
    if isinstance(default, float):
        return isinstance(value, float)
    return isinstance(default, str) and isinstance(value, str) and name.endswith(ACTIVATIONS)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, _PLAIN) for item in value)


def rope_parameters(
    default: Mapping[str, object], given: Mapping[str, object]
) -> dict[str, object] | None:
    """Return the settings of rotary positions as the one setting that transformers makes of them.

    Args:
        default: The type's `rope_parameters`.
        given: Settings; those of `ROPE` are read.

    Returns:
        The setting; None where it is not sure.
    """
    own = {name: given[name] for name in ROPE[:2] if name in given}
    if not all(isinstance(value, int | float) for value in own.values()):
        return None
    scaling = given.get("rope_scaling") or given.get("rope_parameters")
    if not scaling:
        return {**default, **own}
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in (*_SCALED, default["rope_type"]):
        return None
    if any(isinstance(value, Mapping | list) for value in scaling.values()):
        return None
    if kind in _STRETCHED and "original_max_position_embeddings" not in scaling:
        return None
    if kind == "default" and default["rope_type"] == "axial":
        kind = "axial"
    kept = {name: default[name] for name in ROPE[:2] if name in default}
    return {**kept, **own, **scaling, "rope_type": kind}


def _computed(row: TypeRow, state: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
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


def _agrees(row: TypeRow, name: str, given: object, computed: object) -> bool:
    if row.rules[name][0] == "cycle":
        return given == computed
    return _is_int(given) and given > 0 and name not in row.unsure


def _part(default: object, given: object, *, is_fixed: bool) -> TableConfig | None:
    if not isinstance(default, Mapping) or not isinstance(given, Mapping | None):
        return None
    settings = default if given is None else given
    kind = None if is_fixed else settings.get("model_type")
    kind = kind or default.get("model_type")
    return table_config({**settings, "model_type": kind})


def _divides(row: TypeRow, state: Mapping[str, object]) -> bool:
    for width in WIDTHS:
        for heads in HEADS:
            found = [size for values in (row.settings, state) for name in (width, heads)
                     if _is_int(size := values.get(name)) and size > 0]  # fmt: skip
            if len(found) == 4:
                before, by, after, now = found
                if before % by == 0 and after % now:
                    return False
    return True
