"""The renderings by kind of document and format, and the format of a file name."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rksp.ground.errors import InputError, nearest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rksp.documents.base import Document

KINDS = ("score", "confirm", "grid", "diff", "runs", "watch")
_LISTED = ("score", "grid")  # kinds whose issues code hosts list
PLAIN_WIDTH = 100  # columns of text that no terminal shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format.

    Attributes:
        name: Its name for `--format`.
        suffix: The suffix of files in this format; empty if there is none.
        renderings: Kind of document -> `module:function`. The function takes the document and
            returns text, or what rich prints.
    """

    name: str
    suffix: str = ""
    renderings: Mapping[str, str]


# A new format is one file and one entry here.
FORMATS = (
    Format(
        name="text",
        suffix=".txt",
        renderings=dict.fromkeys(KINDS, "rksp.report.terminal:render")
        | {"score": "rksp.report.score.page:render"},
    ),
    Format(name="full", renderings={"score": "rksp.report.terminal:render"}),
    Format(
        name="json",
        suffix=".json",
        renderings=dict.fromkeys(KINDS, "rksp.documents.base:Document.to_json"),
    ),
    Format(
        name="markdown",
        suffix=".md",
        renderings=dict.fromkeys(KINDS, "rksp.report.markdown:render"),
    ),
    Format(
        name="sarif",
        suffix=".sarif",
        renderings=dict.fromkeys(_LISTED, "rksp.report.machines.sarif:render"),
    ),
    Format(
        name="junit",
        suffix=".xml",
        renderings={
            "score": "rksp.report.machines.junit:render",
            "confirm": "rksp.report.machines.junit:confirmation",
            "grid": "rksp.report.machines.junit:grid",
        },
    ),
    Format(
        name="github",
        renderings=dict.fromkeys(_LISTED, "rksp.report.machines.annotations:github"),
    ),
    Format(
        name="gitlab",
        renderings=dict.fromkeys(_LISTED, "rksp.report.machines.annotations:gitlab"),
    ),
    Format(name="html", suffix=".html", renderings=dict.fromkeys(KINDS, "rksp.report.html:render")),
    Format(name="brief", renderings={"score": "rksp.report.finish:render"}),
    Format(name="csv", suffix=".csv", renderings={"grid": "rksp.report.grid.blocks:csv"}),
)
RENDERINGS = {
    (kind, found.name): function for found in FORMATS for kind, function in found.renderings.items()
}
_SUFFIXES = {found.suffix: found.name for found in FORMATS if found.suffix}


def formats_of(kind: str) -> tuple[str, ...]:
    """Return the names of the formats of one kind of document, in the order of the table."""
    return tuple(name for of, name in RENDERINGS if of == kind)


def one_of(names: Sequence[str], last: str = "or") -> str:
    """Join names as in `text, json or html`."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def suffixes_of(kind: str | None = None) -> str:
    """Return the suffixes of one kind of document, or of any, such as `.txt .json .html`."""
    return " ".join(
        f.suffix for f in FORMATS if f.suffix and (kind is None or kind in f.renderings)
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
    module, _, path = RENDERINGS[kind, name].partition(":")
    function: Any = importlib.import_module(module)
    for part in path.split("."):
        function = getattr(function, part)
    return function(document)


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
