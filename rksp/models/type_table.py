"""The shipped table of model types: what transformers' default configurations declare.

`defaults.jsonl` holds a type a line, made by `python -m lab.bench.type_table` from the release of
transformers that its first line names. Only the line of a type that is asked for is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "defaults.jsonl"


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

    settings: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    rules: Mapping[str, list] = field(default_factory=dict)
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
    settings: Mapping[str, Any]
    generation: tuple[str, ...]


@cache
def _lines() -> dict[str, str]:
    """Return each row's unparsed JSON by model type; the common part is under ""."""
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


def forget() -> None:
    """Read the file again when it is next needed."""
    for kept in (_lines, common, type_row):
        kept.cache_clear()
