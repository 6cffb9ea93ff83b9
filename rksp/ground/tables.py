"""The tables that rksp is made with: a word that nothing knows is refused as they are loaded."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from rksp.ground.errors import RkspError, nearest

_Row = TypeVar("_Row")


@cache
def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """Return a TOML table that a package of rksp's holds; read it, and change nothing in it."""
    return tomllib.loads((files(package) / name).read_text("utf-8"))


class TableError(RkspError):
    """A table of rksp's own holds a word that nothing knows: a mistake of ours, of no file."""


def known_word(word: str, known: Iterable[str], *, where: str, noun: str) -> str:
    """Return a word of a table that is among those known.

    Raises:
        TableError: It is not; the message says where it stands, and which was meant.
    """
    names = list(known)
    if word in names:
        return word
    meant = nearest(word, names, count=1).replace("; did you mean ", "").rstrip("?")
    hint = f'; did you mean "{meant}"?' if meant else "."
    raise TableError(f'{where}: no {noun} "{word}"{hint}')


def row_of(kind: type[_Row], settings: Mapping[str, Any], *, where: str) -> _Row:
    """Return a row of a table as a dataclass, whose fields and closed words it may use.

    Raises:
        TableError: It has another field, lacks one, or has another word.
    """
    needed, words = _fields(cast(Hashable, kind))
    for name, value in settings.items():
        known_word(name, words, where=where, noun="field")
        if words[name] and isinstance(value, str):
            known_word(value, words[name], where=f"{where} {name}", noun="word")
    for name in needed:
        if name not in settings:
            raise TableError(f'{where}: the field "{name}" is missing.')
    return kind(**settings)


@cache
def _fields(kind: Any) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    names, missing = vars(sys.modules[kind.__module__]), dataclasses.MISSING
    every = [field for field in dataclasses.fields(kind) if field.init]
    needed = [f.name for f in every if f.default is missing and f.default_factory is missing]
    words = {}
    for field in every:
        hint = names.get(str(field.type))  # a closed list of words has a name of its own
        words[field.name] = get_args(hint) if get_origin(hint) is Literal else ()
    return needed, words


def check_arguments(function: Callable[..., Any], settings: Iterable[str], *, where: str) -> None:
    """Check that a function takes these settings by name.

    Raises:
        TableError: It does not take one.
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return
    takes = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & 0x08:  # **more
        return
    for name in settings:
        known_word(name, takes, where=where, noun=f"setting of {function.__name__}")
