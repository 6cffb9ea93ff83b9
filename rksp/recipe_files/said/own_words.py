"""Fixes in the words of the trainer whose file is judged: `warmup_steps: 400`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rksp.ground.flags import flags_of
from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import Origin, OriginKind

_GROUP = re.compile(r"\(((?:--[a-z0-9-]+ [^\s)]+ ?)+)\)")
_LOWER = re.compile(r"(ower the learning rate to )([0-9][0-9.e+-]*[0-9])")
_FIELDS = {flag.name: name for name, flag in flags_of(Recipe).items()}


def settings_in(fix: str) -> dict[str, str]:
    """Return field -> value of the first change that a fix names; empty where it names none."""
    group, lower = _GROUP.search(fix), _LOWER.search(fix)
    if lower is not None and (group is None or lower.start() < group.start()):
        return {} if "for adapters" in fix else {"learning_rate": lower[2]}
    words = group[1].split() if group is not None else []
    named = zip(words[::2], words[1::2], strict=True)
    return {_FIELDS[flag]: value for flag, value in named if flag in _FIELDS}


def in_own_words(fix: str, origins: Mapping[str, Origin], keys: Mapping[str, str]) -> str:
    """Return a fix with the trainer's keys where it names options of rksp.

    Args:
        fix: One sentence of a check.
        origins: Field -> where it comes from; a typed one keeps the option that was typed.
        keys: Field -> the trainer's key that takes the value in rksp's units.
    """

    def group(match: re.Match[str]) -> str:
        words = match[1].split()
        said = [
            own_setting(_FIELDS.get(flag, ""), value, origins, keys)
            for flag, value in zip(words[::2], words[1::2], strict=True)
        ]
        known = [one for one in said if one]
        return f"({', '.join(known)})" if known else match[0]

    def lower(match: re.Match[str]) -> str:
        said = own_setting("learning_rate", match[2], origins, keys)
        return f"{match[0]} ({said})" if said else match[0]

    return _LOWER.sub(lower, _GROUP.sub(group, fix))


def own_setting(
    field: str, value: str, origins: Mapping[str, Origin], keys: Mapping[str, str]
) -> str | None:
    """Return `key: value` as the trainer's file has it; None where no key takes the value."""
    origin = origins.get(field)
    if origin is None or origin.kind is OriginKind.FLAG:
        return None
    is_as_written = len(origin.keys) == 1 and origin.text == origin.keys[0]
    key = origin.keys[0] if is_as_written else keys.get(field)
    return None if key is None else f"{key}: {plain(value)}"


def plain(value: str) -> str:
    """Write a number so that every YAML reader takes it for one: 0.001, which 1e-3 is not."""
    return f"{float(value):.12f}".rstrip("0").rstrip(".") if "e" in value else value
