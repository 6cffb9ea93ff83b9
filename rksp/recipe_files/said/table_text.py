"""A recipe as a text table for the terminal: field, value, origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from rksp.ground.text import short
from rksp.recipe_files.said.origin import Origin, OriginKind

if TYPE_CHECKING:
    from rksp.documents.score import OriginReport

_MOST = 4  # stages of a batch ramp that are written out


def recipe_rows(
    values: Mapping[str, object], origins: Mapping[str, Origin | OriginReport]
) -> list[tuple[str, str, str]]:
    """Return field, value and origin of every field that the recipe uses.

    Optional fields that nobody set are left out.

    Args:
        values: Field of the recipe → value.
        origins: Field → origin, with its text in full.
    """
    return [
        (name, shown(values[name]), origin.text)
        for name, origin in origins.items()
        if origin.kind != OriginKind.UNASKED
    ]


def recipe_table(
    values: Mapping[str, object], origins: Mapping[str, Origin | OriginReport]
) -> Iterator[str]:
    """Yield the lines of a table with one row per field; see `recipe_rows`."""
    rows = [("field", "value", "from"), *recipe_rows(values, origins)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, text in rows:
        yield f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {text}".rstrip()


def in_full(origin: Origin) -> Origin:
    """Return an origin whose text says all of it, as tables and reports show it."""
    return replace(origin, text=source(origin))


def source(origin: Origin) -> str:
    """Return the origin of a field as one phrase."""
    place = f" (line {origin.line})" if origin.line else ""
    keys = " × ".join(origin.keys)
    if place and origin.text.startswith(keys):
        text = f"{keys}{place}{origin.text[len(keys) :]}"
    else:
        text = f"{origin.text}{place}"
    return f"assumed: {text}" if origin.kind is OriginKind.ASSUMED else text


def shown(value: object) -> str:
    """Format a value of a recipe; None is off."""
    if value is None:
        return "off"
    if isinstance(value, tuple) and len(value) > _MOST and isinstance(value[0], tuple):
        return f"{value[0][1]} → {value[-1][1]} in {len(value)} stages"  # a batch ramp
    if isinstance(value, tuple):
        return ", ".join(shown(part) for part in value) or "none"
    if not isinstance(value, float):
        return str(value)
    return short(value, 10) if abs(value) < 1 else f"{value:.10g}"  # 10000 may be typed, 10,000 not
