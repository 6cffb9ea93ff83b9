"""A reader of one trainer's files: a table of `keys.toml`, with functions for special cases."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any, Literal, get_args, get_origin

from rksp.ground.tables import check_arguments, known_word, packaged_toml, row_of
from rksp.recipe import Recipe
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.said.origin import Unread
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.convert import Converter, number, positive
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.spellings import misspelt

NOTHING = object()
_OFF = ("", "none", "no", "off", "false", "null", "0", "0.0", "1", "-1")
_CLOSE = 0.8  # likeness of two keys, one of which is a misspelling of the other
# Fields that are no plain numbers; `as` in a row names another converter.
_CONVERTERS = {"optimizer": convert.optimizer, "schedule": convert.schedule,
               "precision": convert.precision, "max_grad_norm": convert.clip}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One field of the recipe.

    Attributes:
        field: Field of `rksp.recipe.Recipe`.
        keys: Dotted keys of the file, separated by blanks; the first that has a value counts.
        convert: Sets the field from the keys, if one of them is there.
        default: The trainer's default, or what finds it in the draft; `NOTHING` sets nothing.
        text: Why the default is what it is.
    """

    field: str
    keys: str
    convert: Converter = number
    default: object = NOTHING
    text: str = ""


Step = Row | Callable[[Draft], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The marks of one trainer's files; a document must have at least two.

    Attributes:
        all: Dotted keys that must all be there, as words.
        some: Dotted keys; at least `least` of them must be there.
        least: Required number of `some`.
        one: Dotted keys; at least one of them must be there as well.
        none: Keys that must not be there.
        syntax: The file's syntax must be one of these.
        program: The program of a command line must match this expression; counts as two marks.
    """

    all: str = ""
    some: str = ""
    least: int = 1
    one: str = ""
    none: str = ""
    syntax: str = "yaml json toml shell"
    program: str = ""

    def match(self, document: Document) -> bool:
        """Return True if a document has these marks."""
        if document.syntax not in self.syntax.split():
            return False
        if any(document.has(key) for key in self.none.split()):
            return False
        if self.one and not any(document.has(key) for key in self.one.split()):
            return False
        if self.program and document.program:
            return re.search(self.program, document.program) is not None
        if not self.all and not self.some:
            return False
        least = self.least if self.some else 0
        found = sum(document.has(key) for key in self.some.split())
        return document.has(*self.all.split()) and found >= least


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One trainer's format.

    Attributes:
        name: Its name for `--as` and in tables.
        title: Its name for people.
        version: The trainer's version with these names and defaults.
        source: The repository and files that names and defaults were read in.
        unverified: Parts that were not compared with the source.
        written: Field -> the key that takes its value in rksp's units, where no row says it.
        muon: The scale of Muon's update where the file gives none; its formula and source.
        marks: Alternatives that identify a file.
        steps: Rows and functions in order; later ones may use what earlier ones set.
    """

    name: str
    title: str
    version: str
    source: str
    marks: tuple[Marks, ...]
    steps: tuple[Step, ...]
    unverified: str = ""
    written: Mapping[str, str] = field(default_factory=dict)
    muon: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """Field -> the trainer's key that takes its value as it is, in rksp's units."""
        rows = [step for step in self.steps if isinstance(step, Row) and step.keys]
        plain = {
            row.field: row.keys.split()[0] for row in rows if row.convert in (number, positive)
        }
        return plain | dict(self.written)

    @property
    def known(self) -> set[str]:
        """Every key of the table's rows."""
        rows = [step for step in self.steps if isinstance(step, Row)]
        return {key for row in rows for key in row.keys.split()}

    def matches(self, document: Document) -> bool:
        """Return True if a document looks like this trainer's."""
        stated = document.stated()
        return any(marks.match(stated) for marks in self.marks)

    def read(self, draft: Draft) -> None:
        """Fill a draft from its document."""
        draft.keys = self.keys
        for step in self.steps:
            if not isinstance(step, Row):
                step(draft)
                continue
            keys = step.keys.split()
            step.convert(draft, step.field, keys)
            if draft.stands_elsewhere(step.field, keys):
                continue
            value = step.default(draft) if callable(step.default) else step.default
            if value is not NOTHING:
                draft.default(step.field, value, step.text)
        if self.muon and draft.value("optimizer") == "muon":
            draft.default("muon_scale", self.muon["scale"], self.muon["source"].partition(";")[0])


def _trainers() -> dict[str, dict[str, Any]]:
    return packaged_toml("rksp.recipe_files", "keys.toml")


def foreign_format(document: Document) -> tuple[str, str, str] | None:
    """Return what a document is that no reader reads, what to give, and which advice this is."""
    about = _trainers()["foreign"]
    for keys, title, *advice in (line.split(": ") for line in about["formats"].split("\n") if line):
        if document.has(*keys.split()):
            kind = advice[0] if advice else "usual"
            return title, about["advice"].get(kind, about["usual"]), kind
    return None


def reader_of(name: str, functions: Mapping[str, Any]) -> Reader:
    """Return the reader of a trainer.

    Args:
        name: Its table in `keys.toml`.
        functions: What the table may name beside the functions of `convert`: those of a module.
    """
    about, known = _trainers()[name], {**vars(convert), **functions}
    where = f"keys.toml [{name}]"
    for key in about:
        known_word(key, _PARTS, where=where, noun="part")
    shared = _trainers().get(about.get("extends", ""), {})
    written = shared.get("written", {}) | about.get("written", {})
    for field_name in written:
        known_word(field_name, Recipe.model_fields, where=f"{where} written", noun="field")
    steps = enumerate(_rows(about["steps"], where), start=1)
    return Reader(
        name=name,
        marks=tuple(row_of(Marks, marks, where=f"{where} marks") for marks in about["marks"]),
        steps=tuple(_step(row, known, f"{where} step {number}") for number, row in steps),
        **{key: about[key] for key in ("title", "version", "source")},
        written=written,
        **{key: about[key] for key in ("unverified", "muon") if key in about},
    )


_PARTS = ("title", "version", "source", "unverified", "written", "muon", "marks", "steps",
          "extends", "changes")  # fmt: skip


def _rows(steps: Iterable[Any], where: str) -> Iterator[Any]:
    for row in steps:
        if not isinstance(row, dict) or "like" not in row:
            yield row
            continue
        defaults = row.get("defaults", {})
        known_word(row["like"], _trainers(), where=where, noun="table")
        others = _trainers()[row["like"]]["steps"]
        fields = [next(iter(other)) for other in others if isinstance(other, dict)]
        for name in defaults:
            known_word(name, fields, where=f"{where} defaults of {row['like']}", noun="field")
        for other in others:
            if isinstance(other, dict):
                name, keys = next(iter(other.items()))
                other = other | {name: keys.replace("{at}", row.get("at", ""))}
                other |= defaults.get(name, {})
            yield other


def _step(row: Any, known: Mapping[str, Any], where: str) -> Step:
    """Return the step that a row stands for: a function, alone or with settings, or a field.

    Raises:
        TableError: It has a word that nothing knows.
    """

    def named(word: str, noun: str) -> Any:
        return known[known_word(word, known, where=where, noun=noun)]

    if isinstance(row, str):
        step: Step = named(row, "function")
        return step
    (name, keys), *rest = row.items()
    settings = dict(rest)
    if name not in Recipe.model_fields:
        known_word(name, (*known, *Recipe.model_fields), where=where, noun="field or function")
        function = known[name]
        check_arguments(function, settings, where=where)
        return lambda draft: function(draft, keys, **settings)
    kind, default = settings.pop("as", ""), settings.pop("default", NOTHING)
    if isinstance(default, str):
        default = named(default[:-2], "function") if default.endswith("()") else default
        default = None if default == "off" else default
    if isinstance(default, str) and (words := _closed(name)):
        known_word(default, words, where=f"{where} {name}", noun="word")
    if "by" in settings:
        by = known_word(settings.pop("by"), Recipe.model_fields, where=where, noun="field")
        default = partial(_default_by, by, settings.pop("where"), default)
    if isinstance(kind, dict):
        for word in kind.values() if _closed(name) else ():
            known_word(word, _closed(name), where=f"{where} {name}", noun="word")
        converter = convert.meaning(kind)
    else:
        converter = named(kind, "converter") if kind else _CONVERTERS.get(name, number)
    known_row = {"field": name, "keys": keys, "convert": converter, "default": default, **settings}
    return row_of(Row, known_row, where=where)


@cache
def _closed(name: str) -> tuple[str, ...]:
    hint = Recipe.model_fields[name].annotation
    return get_args(hint) if get_origin(hint) is Literal else ()


def _default_by(field: str, where: Mapping[str, object], rest: object, draft: Draft) -> object:
    return where.get(str(draft.value(field)), rest)


def unread(draft: Draft, trainer: str, known: Iterable[str]) -> Iterator[Unread]:
    """Yield the settings that could not be followed, or were not read and may matter.

    A key that the reader asked for, and that another one overruled, is not among them.

    Args:
        draft: The recipe, read.
        trainer: Name of the reader.
        known: Keys of the reader's rows.
    """
    asked = {_plain(key) for key in (*draft.asked, *known)}
    absent = asked - {_plain(key) for key in draft.document.leaves()}
    changing, idle = _changing(trainer), _trainers()["every"]["idle"].split()
    for key in draft.document.leaves():
        plain = _plain(key)
        if key in draft.document.defaults:
            continue
        if key in draft.seen or plain in asked:
            found = draft.document.find(key)
            if found is not None and isinstance(found.value, Unresolved):
                yield Unread(key=key, line=found.line, value=found.value.text)
            elif found is not None and found.value == "auto" and key in draft.unknown_keys:
                yield Unread(key=key, line=found.line, value="auto")
            continue
        nearest, setting = _moved(plain, absent), draft.document.find(key)
        line, why = draft.document.lines.get(key), ""
        is_known = plain in changing or any(fnmatchcase(plain, one) for one in idle)
        nearest = nearest or ("" if is_known else _misspelt(plain, absent))
        if not nearest:
            why = next((why for one, why in changing.items() if fnmatchcase(plain, one)), "")
        if why:
            if setting is not None and _is_on(setting.value):
                yield Unread(key=key, line=line, why=why)
            continue
        if not nearest and (is_known or (_is_idle(plain) and not misspelt(key))):
            continue
        nearest = nearest or elsewhere(plain, absent)
        if nearest or draft.document.syntax != "python":  # its other names are a program's own
            yield Unread(key=key, line=line, nearest=nearest)


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _is_on(value: object) -> bool:
    return value is True or str(value).lower() not in _OFF


def _misspelt(key: str, asked: Iterable[str]) -> str:
    home, _, name = key.rpartition(".")
    beside = {one.rpartition(".")[2]: one for one in asked if one.rpartition(".")[0] == home}
    close = difflib.get_close_matches(name, sorted(beside), n=1, cutoff=_CLOSE)
    return beside[close[0]] if close else ""


def _moved(key: str, asked: Iterable[str]) -> str:
    longer = set(_with_one_less(key))
    known = (one for one in asked if one in longer or key in _with_one_less(one))
    return min(known, key=lambda one: (len(one), one), default="")


def _with_one_less(key: str) -> list[str]:
    *homes, name = key.split(".")
    return [".".join((*homes[:i], *homes[i + 1 :], name)) for i in range(len(homes))]


def elsewhere(key: str, asked: Iterable[str]) -> str:
    """Return the known key of the same name at another level; the level next to it counts first."""
    if near := _moved(key, asked):
        return near
    name = key.rpartition(".")[2]
    levels = [one for one in asked if one.rpartition(".")[2] == name]
    return min(levels, key=lambda one: (len(one), one), default="")


def _is_idle(key: str) -> bool:
    words = {_SINGULAR.sub("", word) for word in re.split(r"[^a-z0-9]+", key.lower())}
    return not words.isdisjoint(_trainers()["every"]["words"].split())


_SINGULAR = re.compile(r"(?<=\w{3})s$")


@cache
def _changing(trainer: str) -> dict[str, str]:
    names, chain = [trainer, "every"], []
    while names:  # a trainer's table may build on another's
        table = _trainers().get(names.pop(0), {})
        chain.append(table)
        names[:0] = table.get("extends", "").split()
    changes = [pair for table in chain for pair in table.get("changes", {}).items()]
    return {key: why for why, keys in changes for key in keys.split()}
