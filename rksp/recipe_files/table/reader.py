"""A reader of one trainer's files: a table of `keys.toml`, with functions for special cases."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from rksp.recipe_files.table.spellings import misspelt, spoken_of

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
class Format:
    """What is known of one trainer's format.

    Attributes:
        title: Its name for people.
        version: The trainer's version with these names and defaults.
        source: The repository and files that names and defaults were read in.
        unverified: Parts that were not compared with the source.
        written: Field -> the key that takes its value in rksp's units, where no row says it.
        muon: The scale of Muon's update where the file gives none; its formula and source.
    """

    title: str = ""
    version: str = ""
    source: str = ""
    unverified: str = ""
    written: Mapping[str, str] = field(default_factory=dict)
    muon: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Format):
    """The reader of one trainer's format.

    Attributes:
        name: Its name for `--as` and in tables.
        marks: Alternatives that identify a file.
        steps: Rows and functions in order; later ones may use what earlier ones set.
    """

    name: str
    marks: tuple[Marks, ...] = ()
    steps: tuple[Step, ...]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table(Format):
    """A table of `keys.toml` as it is written; the README of the package tells its parts."""

    extends: str = ""
    words: str = ""
    idle: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    marks: Sequence[Mapping[str, object]] = ()
    steps: Sequence[_StepRow] = ()
    formats: str = ""  # that no reader reads: a line of keys, title and advice each
    usual: str = ""
    advice: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Like:
    """The steps of another table, in which `{at}` stands for a key, with other settings."""

    like: str
    at: str = ""
    defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


_StepRow = str | dict[str, Any]  # a function, or a field and a function with settings
_Named = Mapping[str, Any]  # what a table may name: the functions of two modules


def _trainers() -> dict[str, dict[str, object]]:
    return packaged_toml("rksp.recipe_files", "keys.toml")


def _table(name: str) -> _Table:
    return row_of(_Table, _trainers().get(name, {}), where=f"keys.toml [{name}]")


def foreign_format(document: Document) -> tuple[str, str, str] | None:
    """Return what a document is that no reader reads, what to give, and which advice this is."""
    about = _table("foreign")
    for keys, title, *advice in (line.split(": ") for line in about.formats.split("\n") if line):
        if document.has(*keys.split()):
            kind = advice[0] if advice else "usual"
            return title, about.advice.get(kind, about.usual), kind
    return None


def reader_of(name: str, functions: _Named) -> Reader:
    """Return the reader of a trainer.

    Args:
        name: Its table in `keys.toml`.
        functions: What the table may name beside the functions of `convert`: those of a module.
    """
    table, known = _table(name), {**vars(convert), **functions}
    where = f"keys.toml [{name}]"
    written = {**_table(table.extends).written, **table.written}
    for field_name in written:
        known_word(field_name, Recipe.model_fields, where=f"{where} written", noun="field")
    steps = enumerate(_rows(table.steps, where), start=1)
    return Reader(
        name=name,
        title=table.title,
        version=table.version,
        source=table.source,
        unverified=table.unverified,
        marks=tuple(row_of(Marks, marks, where=f"{where} marks") for marks in table.marks),
        steps=tuple(_step(row, known, f"{where} step {number}") for number, row in steps),
        written=written,
        muon=table.muon,
    )


def _rows(steps: Iterable[_StepRow], where: str) -> Iterator[_StepRow]:
    for row in steps:
        if isinstance(row, str) or "like" not in row:
            yield row
            continue
        like = row_of(_Like, row, where=where)
        others = _table(known_word(like.like, _trainers(), where=where, noun="table")).steps
        fields = [next(iter(other)) for other in others if not isinstance(other, str)]
        for name in like.defaults:
            known_word(name, fields, where=f"{where} defaults of {like.like}", noun="field")
        for other in others:
            if not isinstance(other, str):
                name, keys = next(iter(other.items()))
                more = like.defaults.get(name, {})
                other = {**other, name: keys.replace("{at}", like.at), **more}
            yield other


def _step(row: _StepRow, known: _Named, where: str) -> Step:
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
    changing, idle = _changing(trainer), _table("every").idle.split()
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
        name = plain.rpartition(".")[2]
        is_spoken = trainer == "by name" and bool(spoken_of(key)) and not _is_idle(name)
        is_known = is_known or (_is_idle(plain) and not misspelt(key) and not is_spoken)
        if not nearest and is_known:
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


def moves_nothing(name: str) -> bool:
    """Tell whether a setting moves no answer, such as one of logging or of checkpoints."""
    return _is_idle(name) and not any(fnmatchcase(name, one) for one in _changing("every"))


def _is_idle(key: str) -> bool:
    words = {_SINGULAR.sub("", word) for word in re.split(r"[^a-z0-9]+", key.lower())}
    return not words.isdisjoint(_table("every").words.split())


_SINGULAR = re.compile(r"(?<=\w{3})s$")


@cache
def _changing(trainer: str) -> dict[str, str]:
    names, chain = [trainer, "every"], []
    while names:  # a trainer's table may build on another's
        table = _table(names.pop(0))
        chain.append(table)
        names[:0] = table.extends.split()
    changes = [pair for table in chain for pair in table.changes.items()]
    return {key: why for why, keys in changes for key in keys.split()}
