"""A reader of one trainer's files: a table of fields, with functions for special cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rksp.optimizers.muon_scale import TRAINERS
from rksp.recipe import AFTER_TRAINING
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.table.convert import number, positive
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import FEEDBACK

NOTHING = object()


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
    convert: Callable[[Draft, str, Sequence[str]], None] = number
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
        none: Keys that must not be there.
        syntax: The file's syntax must be one of these.
        program: The program of a command line must match this expression; counts as two marks.
    """

    all: str = ""
    some: str = ""
    least: int = 1
    none: str = ""
    syntax: str = "yaml json toml shell"
    program: str = ""

    def match(self, document: Document) -> bool:
        """Return True if a document has these marks."""
        if document.syntax not in self.syntax.split():
            return False
        if any(document.has(key) for key in self.none.split()):
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
        return any(marks.match(document) for marks in self.marks)

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
        if draft.value("objective") in AFTER_TRAINING:
            asked = ((name, draft.get(*keys.split())) for name, keys in FEEDBACK.items())
            draft.feedback = {name: found for name, found in asked if found is not None}
        own = TRAINERS.get(self.name)
        if own is not None and draft.value("optimizer") == "muon":
            draft.default("muon_scale", own.scale, own.source.partition(";")[0])
