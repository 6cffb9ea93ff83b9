"""What a page is made of: a list of blocks, built once for a document and drawn by three renderers.

Text on a page is a string or a sequence of strings. A `Number` among them knows its place in the
document, so that a machine reads the document's own number where people read a short one; `Code`
is shown as code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from rksp.ground.text import percent as percent
from rksp.ground.text import short
from rksp.report.formats import KINDS, named

if TYPE_CHECKING:
    from rksp.documents.base import Document

Words = Sequence[str]  # a string is one too
Rows = list[list[Words]]
MISSING = "–"  # in place of a number that is None
PERCENT = "percent"  # the form of a probability
_TONES = dict.fromkeys(("ok", "trained", "quiet", "read", "fine"), "ok")
_TONES |= dict.fromkeys(("risk", "failed"), "risk")
# Mastrandrea et al. (2010), guidance note on uncertainties of the IPCC: upper end and words.
LIKELIHOOD = (
    (0.01, "exceptionally unlikely"),
    (0.1, "very unlikely"),
    (0.33, "unlikely"),
    (0.66, "about as likely as not"),
    (0.9, "likely"),
    (0.99, "very likely"),
    (1.0, "virtually certain"),
)


class Number(str):
    """A number as people read it.

    Attributes:
        value: The document's own number.
        path: Its place in the document: `seeds/0/risk/likely_edge`.
    """

    value: float
    path: str

    def __html__(self) -> str:
        return Markup('<data value="{!r}" data-path="{}">{}</data>').format(
            self.value, self.path, str(self)
        )


class Code(str):
    """Text that is shown as code: a name, a command."""

    def __html__(self) -> str:
        return Markup("<code>{}</code>").format(str(self))


@dataclass(frozen=True, slots=True)
class Numbers:
    """Writes numbers of a document with their places in it.

    Attributes:
        document: A report, whose fields, keys and positions are the parts of a path.
        at: What stands in front of every path.
    """

    document: Any
    at: str = ""

    def __call__(self, path: str, form: str = "", digits: int = 3) -> str:
        """Return the number at a path; a dash where the document has none."""
        value, whole = self.document, f"{self.at}{path}"
        for part in whole.split("/"):
            value = _part(value, part)
        if value is None or not math.isfinite(value):
            return MISSING
        number = Number(written(value, form, digits))
        number.value, number.path = value, whole
        return number


def _part(value: object, name: str) -> Any:
    if name.isdigit() and isinstance(value, Sequence):
        return value[int(name)]
    return value[name] if isinstance(value, dict) else getattr(value, name)


def written(value: float | None, form: str = "", digits: int = 3) -> str:
    """Write a number: as a probability, in a form of `format`, or with that many digits."""
    if value is None:
        return MISSING
    if form == PERCENT:
        return percent(value)
    return format(value, form) if form else short(value, digits)


def likelihood(probability: float) -> str:
    """Return a probability in the words of the IPCC's guidance note."""
    return next(name for end, name in LIKELIHOOD if probability <= end)


def pieces(said: Words) -> Sequence[str]:
    """Return the pieces of a text: a string is its own."""
    return (said,) if isinstance(said, str) else said


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph: of the answer, `advice` to follow, or something to know (`hint`)."""

    said: Words
    look: Literal["lead", "advice", "hint"] = "lead"


@dataclass(frozen=True, slots=True)
class Notes:
    """A list of what limits the numbers above it."""

    said: Sequence[Words]


@dataclass(frozen=True, slots=True)
class Command:
    """A command to copy."""

    said: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads.

    Attributes:
        head: A title for each column.
        rows: Cells, as many as titles.
        look: `cards` are name, value, range and note; `figures` the same in large print, without a
            range; `bars` are name and a signed number; `map` a name and P(failed) by column;
            `items` a level, code, message, fix and small print.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Words]]
    look: Literal["table", "cards", "figures", "bars", "map", "items"] = "table"

    @property
    def shown(self) -> list[int]:
        """Places of the columns that say something of a row; a map has a column for each rate."""
        told = [{*map("".join, cells)} - {"", MISSING} for cells in zip(*self.rows, strict=True)]
        return [place for place, said in enumerate(told) if said or self.look == "map"]

    def is_number(self, place: int) -> bool:
        """Tell whether a column holds numbers or pairs of them, which are aligned at their ends."""
        said = [pieces(row[place]) for row in self.rows]
        ends = [end for one in said for end in (*one[:1], *one[-1:])]
        return place > 0 and all(isinstance(end, Number) or end in ("", MISSING) for end in ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A drawing.

    Attributes:
        title: Of the part of the page that it makes.
        hint: How to read it.
        drawing: HTML.
        text: What stands for it on a terminal; empty for nothing.
    """

    title: str
    hint: Words
    drawing: Markup
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """The head of a page: what it is about.

    Attributes:
        eyebrow: What made it.
        name: Of the model or the sweep.
        about: The rest in a sentence.
    """

    eyebrow: str
    name: str
    about: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer.

    Attributes:
        verdict: The document's.
        headline: The answer in a clause.
        odds: What is counted, and the count; empty for none.
        gauge: A drawing of the chance to fail.
        blocks: The answer in full.
    """

    verdict: str
    headline: str
    odds: tuple[str, Words] | tuple[()] = ()
    gauge: Markup | None = None
    blocks: Sequence[Block] = ()

    @property
    def word(self) -> str:
        """The verdict for people."""
        return self.verdict.upper()

    @property
    def tone(self) -> str:
        """Its color: ok, risk or doubtful."""
        return _TONES.get(self.verdict, "doubtful")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page with a title.

    Attributes:
        title: What it shows.
        blocks: What is in it.
        hint: How to read it, for a page with room.
        folds: What shows only the title at first: Markdown (`summary`), HTML too (`page`).
        is_record: It is there to repeat the command, and no terminal shows it.
    """

    title: str
    blocks: Sequence[Block]
    hint: Words = ""
    folds: Literal["", "summary", "page"] = ""
    is_record: bool = False


Block = Sentence | Notes | Command | Table | Figure | Title | Verdict | Section


def blocks_of(document: Document) -> list[Block]:
    """Return the page of a document of any kind."""
    blocks: list[Block] = named(KINDS[document.kind][1])(document)
    return blocks


def provenance(report: Any, number: Numbers, *more: Sequence[Words]) -> Section:
    """Return what is needed to get the same numbers again.

    Args:
        report: A document with `provenance` and `timings`.
        number: Writes its numbers.
        more: Further cards: name, value, range and note.
    """
    versions = {name: value for name, value in report.provenance.items() if name != "command"}
    cards: list[Sequence[Words]] = [
        (name, Code(value), "", "") for name, value in sorted(versions.items())
    ]
    cards += [*more, *((s, (number(f"timings/{s}", ".2f"), " s"), "", "") for s in report.timings)]
    command = report.provenance.get("command")
    table = Table(("Name", "Value", "", ""), cards, look="cards")
    return Section(
        "Provenance",
        [*([Command(str(command))] if command else []), table],
        hint="Everything that is needed to get the same numbers again.",
        folds="summary",
        is_record=True,
    )
