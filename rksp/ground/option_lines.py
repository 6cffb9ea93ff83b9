"""Parse `name:key=value,…`, the form of monitors, interventions, faults and arms."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rksp.ground.errors import InputError, nearest

T = TypeVar("T")


@dataclass(eq=False)
class Options:
    """A class whose fields are its options; each is parsed by its annotation when it is made.

    Raises:
        InputError: A value cannot be used.
    """

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self), include_extras=True)
        for name in (field.name for field in fields(self) if field.init):
            where = f"{type(self).__name__}: {name}"
            setattr(self, name, _parsed(getattr(self, name), kinds[name], where))


def build(table: Mapping[str, type[T]], text: str, *, noun: str) -> T:
    """Build the object that a line describes.

    A line is a name, a name with options (`kss:weight=0.1,every=4`), or a name with the value of
    its first option (`clip=0.5`). Values are parsed by the types that the class's constructor
    declares; `/` separates the values of a list. Hyphens and underscores are equivalent.

    Args:
        table: Class by name.
        text: The line.
        noun: Noun for the table's entries, for messages.

    Returns:
        The object.

    Raises:
        InputError: The name or a key is unknown (the message lists all known ones), or a value
            cannot be parsed.
    """
    typed, options = split_line(text, noun=noun)
    name = known_name(table, typed, noun=noun)
    kind, where = table[name], f"{noun.capitalize()} {name!r}"
    types = get_type_hints(kind.__init__, include_extras=True)
    known = [key for key in inspect.signature(kind).parameters if key in types]
    given = {}
    for key, value in options.items():
        if not known:
            raise InputError(f"{where} has no options; write {name}.")
        option = known_name(known, key, noun="option", owner=where) if key else known[0]
        whole = value.split("/") if _is_list(types[option]) else value
        given[option] = _parsed(whole, types[option], f"{where}: {option}")
    return kind(**given)


def split_line(text: str, *, noun: str) -> tuple[str, dict[str, str]]:
    """Split a line into name and options; the key of the first option's bare value is empty.

    Raises:
        InputError: An option has no value, or occurs twice.
    """
    name, colon, rest = text.partition(":")
    if not colon:
        name, equals, value = text.partition("=")
        return name.strip(), {"": value.strip()} if equals else {}
    options: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals):
            raise InputError(
                f"{noun.capitalize()} {text.strip()!r}: {pair!r} is not of the form key=value; for "
                f"one value write {name.strip()}={pair}."
            )
        if key in options:
            raise InputError(f"{noun.capitalize()} {text.strip()!r} has two values of {key}.")
        options[key] = value
    return name.strip(), options


def known_name(known: Collection[str], typed: str, *, noun: str, owner: str = "") -> str:
    """Return the known name that was typed, with hyphens or underscores.

    Raises:
        InputError: There is none; the message names the nearest ones and all.
    """
    for name in known:
        if _spelled(name) == _spelled(typed):
            return name
    what = f"{owner} has no {noun}" if owner else f"There is no {noun}"
    spelled = {_spelled(name): name for name in known}
    hint = nearest(_spelled(typed), spelled) or "."
    raise InputError(f"{what} {typed.strip()!r}{hint} The {noun}s are {', '.join(known)}.")


def _spelled(name: str) -> str:
    return name.strip().replace("_", "-")


def _parsed(value: object, kind: Any, where: str) -> object:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise InputError(f"{where}={value!r} cannot be used: {reason}.") from None


def _is_list(kind: object) -> bool:
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return True
    return any(_is_list(part) for part in get_args(kind))
