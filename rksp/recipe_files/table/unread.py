"""The settings of a file that its reader does not read: not modelled, or unknown."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate
from functools import cache
from pathlib import Path
from typing import Any

from rksp.recipe_files.said.origin import Unread
from rksp.recipe_files.table.draft import Draft

_Idle = tuple[frozenset[str], re.Pattern[str]]  # whole keys, and any text in place of each *
_OFF = ("", "none", "no", "off", "false", "null", "0", "0.0", "1", "-1")
_CLOSE = 0.8  # likeness of two keys, one of which is a misspelling of the other


def unread(draft: Draft, trainer: str, known: Iterable[str]) -> tuple[Unread, ...]:
    """Return the settings that were not read and are not known to be irrelevant.

    A key that the reader asked for, and that another one overruled, is not among them.

    Args:
        draft: The recipe, read.
        trainer: Name of the reader.
        known: Keys of the reader's rows.
    """
    asked = {_plain(key) for key in (*draft.asked, *known)}
    absent = asked - {_plain(key) for key in draft.document.leaves()}
    idle, changing = _tables(trainer)
    found = []
    for key in draft.unread():
        plain = _plain(key)
        if plain in asked:
            continue
        setting = draft.document.find(key)
        line = draft.document.lines.get(key)
        nearest = _moved(plain, absent)
        if plain in idle[0] and not nearest:
            continue
        nearest = nearest or ("" if plain in changing else _misspelt(plain, absent))
        why = (
            ""
            if nearest
            else next((why for key, why in changing.items() if fnmatchcase(plain, key)), "")
        )
        if why:
            if setting is not None and _is_on(setting.value):
                found.append(Unread(key=key, line=line, why=why))
            continue
        if not nearest and idle[1].match(plain):
            continue
        nearest = nearest or _elsewhere(plain, absent)
        if nearest or draft.document.syntax != "python":  # its other names are a program's own
            found.append(Unread(key=key, line=line, nearest=nearest))
    return tuple(found)


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() not in _OFF


def _misspelt(key: str, asked: Iterable[str]) -> str:
    """Return the known key beside it with a name much like it."""
    home, _, name = key.rpartition(".")
    beside = {one.rpartition(".")[2]: one for one in asked if one.rpartition(".")[0] == home}
    close = difflib.get_close_matches(name, sorted(beside), n=1, cutoff=_CLOSE)
    return beside[close[0]] if close else ""


def _moved(key: str, asked: Iterable[str]) -> str:
    """Return the known key that differs by one section more or less on the way."""
    longer = set(_with_one_less(key))
    known = (one for one in asked if one in longer or key in _with_one_less(one))
    return min(known, key=lambda one: (len(one), one), default="")


def _with_one_less(key: str) -> list[str]:
    *homes, name = key.split(".")
    return [".".join((*homes[:i], *homes[i + 1 :], name)) for i in range(len(homes))]


def _elsewhere(key: str, asked: Iterable[str]) -> str:
    """Return the known key of the same name at another level."""
    name = key.rpartition(".")[2]
    levels = [one for one in asked if one.rpartition(".")[2] == name]
    return min(levels, key=lambda one: (len(one), one), default="")


@cache
def _tables(trainer: str) -> tuple[_Idle, dict[str, str]]:
    """Return the irrelevant keys of a trainer, and the keys that change a run."""
    with (Path(__file__).parents[1] / "keys.toml").open("rb") as file:
        tables = tomllib.load(file)
    names, chain = [trainer, "every"], []
    while names:  # a trainer's table may build on another's
        table = tables.get(names.pop(0), {})
        chain.append(table)
        names[:0] = table.get("extends", "").split()
    idle = [key for table in chain for key in table.get("idle", "").split()]
    changing = {key: why for table in chain for key, why in table.get("changes", {}).items()}
    return (frozenset(idle), re.compile("|".join(map(translate, idle)))), changing
