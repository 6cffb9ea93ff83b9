"""The renderings by kind of document and format, and the format of a file name."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.ground.errors import InputError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rksp.documents.base import Document

# Kind of document -> its schema, and what makes the blocks of its page.
KINDS = {
    "score": ("rksp.documents.score:ScoreReport", "rksp.report.score.blocks:blocks"),
    "confirm": ("rksp.documents.confirm:ConfirmReport", "rksp.report.confirm:blocks"),
    "grid": ("rksp.documents.grid:GridReport", "rksp.report.grid:blocks"),
    "diff": ("rksp.documents.score:DiffReport", "rksp.report.diff:blocks"),
    "files": ("rksp.documents.score:FilesReport", "rksp.report.files:blocks"),
    "why": ("rksp.documents.own_runs:RunsReport", "rksp.report.runs:past"),
    "watch": ("rksp.documents.confirm:WatchReport", "rksp.report.runs:watched"),
}
_LISTED = ("score", "grid", "files")  # kinds whose issues code hosts list
PLAIN_WIDTH = 100  # columns of text that no terminal shows


@dataclass(frozen=True, slots=True)
class Format:
    """One format of some kinds of documents.

    Attributes:
        name: Its name for `--format`.
        suffix: The suffix of files in this format; empty if there is none.
        kinds: Of documents.
        rendering: `module:function`. The function takes the document and returns text, or what
            rich prints.
    """

    name: str
    suffix: str
    kinds: Collection[str]
    rendering: str


# A new format is one file and one entry here.
FORMATS = (
    Format("text", ".txt", ("score",), "rksp.report.score.page:render"),
    Format("text", ".txt", tuple(KINDS)[1:], "rksp.report.terminal:render"),
    Format("full", "", ("score",), "rksp.report.terminal:render"),
    Format("json", ".json", KINDS, "rksp.documents.base:Document.to_json"),
    Format("markdown", ".md", KINDS, "rksp.report.markdown:render"),
    Format("sarif", ".sarif", _LISTED, "rksp.report.machines:sarif"),
    Format("junit", ".xml", ("score", "confirm", "grid", "files"), "rksp.report.machines:junit"),
    Format("github", "", _LISTED, "rksp.report.machines:github"),
    Format("gitlab", "", _LISTED, "rksp.report.machines:gitlab"),
    Format("html", ".html", KINDS, "rksp.report.html:render"),
    Format("brief", "", ("score",), "rksp.question.gate:render"),
    Format("csv", ".csv", ("grid",), "rksp.report.grid:csv"),
)
RENDERINGS = {(kind, found.name): found.rendering for found in FORMATS for kind in found.kinds}
_SUFFIXES = {found.suffix: found.name for found in FORMATS if found.suffix}


def formats_of(kind: str) -> tuple[str, ...]:
    """Return the names of the formats of one kind of document, in the order of the table."""
    return tuple(name for of, name in RENDERINGS if of == kind)


def one_of(names: Sequence[str], last: str = "or") -> str:
    """Join names as in `text, json or html`."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def suffixes_of(*kinds: str) -> str:
    """Return the suffixes of kinds of documents, or of any, such as `.txt .json .html`."""
    return " ".join(
        end
        for end, name in _SUFFIXES.items()
        if not kinds or any((kind, name) in RENDERINGS for kind in kinds)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A file to write, and the rendering that goes into it."""

    format: str
    path: Path

    @classmethod
    def parse(cls, text: str, kind: str = "score") -> Output:
        """Parse `FILE` (the suffix names the format) or `FORMAT=FILE`.

        Raises:
            InputError: The format or suffix is unknown, a document of that kind lacks the
                format, or the folder does not exist.
        """
        name, separator, file = text.partition("=")
        if separator and ("/" not in name and "." not in name):
            path = Path(file)
            check_format(name, "-o", kind)
        else:
            path = Path(text)
            name = _SUFFIXES.get(path.suffix.lower(), "")
        if not path.name:
            raise InputError(f"-o {text!r} does not name a file.")
        if not name and text in {one.name for one in FORMATS}:
            raise InputError(f"-o {text!r} names no file; write --format {text}, or -o FILE.")
        if not name:
            raise InputError(
                f"-o {text!r} does not say its format; end the name in "
                f"{', '.join(suffixes_of(kind).split())} or write FORMAT=FILE."
            )
        if not path.parent.is_dir():
            raise InputError(f"-o {text!r}: the folder {path.parent} does not exist.")
        check_format(name, f"-o {path}:", kind)
        return cls(format=name, path=path)


def check_format(name: str, option: str = "--format", kind: str = "score") -> str:
    """Return `name`.

    Raises:
        InputError: Documents of that kind have no such format.
    """
    known = formats_of(kind)
    if name not in known:
        hint = nearest(name, known, count=1)
        raise InputError(f"{option} {name!r} is unknown; use {one_of(known)}{hint or '.'}")
    return name


def rendering(document: Document, name: str) -> str | RenderableType:
    """Return the document in the format of that name: text, or what rich prints.

    Raises:
        InputError: Documents of that kind have no such format.
    """
    kind = document.kind
    check_format(name, f"For a report of rksp {kind}, --format", kind)
    made: str | RenderableType = named(RENDERINGS[kind, name])(document)
    return made


def named(where: str) -> Any:
    """Import what has this name, as `module:path`."""
    module, _, path = where.partition(":")
    return attrgetter(path)(importlib.import_module(module))


def schema_of(kind: str) -> type[Document]:
    """Return the schema of the document that a command makes.

    Raises:
        InputError: No command of that name makes a report.
    """
    if kind not in KINDS:
        makers = one_of(tuple(KINDS), "and")
        raise InputError(f"There is no report of {kind!r}; the commands {makers} make reports.")
    schema: type[Document] = named(KINDS[kind][0])
    return schema


def render(document: Document, name: str) -> str:
    """Return the document as text in the format of that name; raises as `rendering`."""
    made = rendering(document, name)
    return made if isinstance(made, str) else plain(made)


def plain(made: RenderableType) -> str:
    """Return what rich prints without colors and without a terminal; no line ends in a space."""
    from rich.console import Console  # not for --help

    stream = io.StringIO()
    Console(file=stream, width=PLAIN_WIDTH, highlight=False, color_system=None).print(
        made, crop=False
    )
    return re.sub(r" +$", "", stream.getvalue(), flags=re.MULTILINE)
