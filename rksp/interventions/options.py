"""`name:key=value,…`: how interventions and faults are named on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rksp.errors import InputError, nearest

T = TypeVar("T")


def build(table: Mapping[str, type[T]], text: str, *, noun: str) -> T:
    """The object that a line such as `kss:weight=0.1,every=4` describes.

    Values are read as the type that the class's constructor declares; hyphens in names and keys
    stand for underscores.

    Args:
        table: Name → class.
        text: The line.
        noun: What the table holds, for messages.

    Raises:
        InputError: The name or a key is unknown (the nearest known one is named), or a value
            cannot be read.
    """
    name, _, rest = text.strip().partition(":")
    name = name.strip().replace("-", "_")
    if name not in table:
        known = nearest(name, table) or f"; choose one of {', '.join(table)}"
        raise InputError(f"There is no {noun} {name!r}{known}")
    kind = table[name]
    types = get_type_hints(kind.__init__)
    known = [key for key in inspect.signature(kind).parameters if key in types]
    options = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise InputError(
                f"{noun.capitalize()} {name!r}: {pair!r} is not of the form key=value."
            )
        if key not in known:
            hint = nearest(key, known) or f"; it knows {', '.join(known) or 'none'}"
            raise InputError(f"{noun.capitalize()} {name!r} has no option {key!r}{hint}")
        options[key] = _read(value.strip(), types[key], f"{noun.capitalize()} {name!r}: {key}")
    return kind(**options)


def _read(value: str, kind: object, where: str) -> object:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise InputError(f"{where}={value!r} cannot be used: {reason}.") from None
