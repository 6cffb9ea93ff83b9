"""The renderings by name, and which one a file name asks for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rksp.errors import InputError, nearest
from rksp.report.schema import Report

FORMATS = ("text", "json", "markdown", "sarif", "junit", "github", "gitlab", "html")
_SUFFIXES = {
    ".txt": "text",
    ".json": "json",
    ".md": "markdown",
    ".sarif": "sarif",
    ".xml": "junit",
    ".html": "html",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A file to write, and the rendering that goes into it."""

    format: str
    path: Path

    @classmethod
    def parse(cls, text: str) -> Output:
        """Reads `FILE` (the suffix names the format) or `FORMAT=FILE`.

        Raises:
            InputError: The format or suffix is unknown, or the folder does not exist.
        """
        name, separator, file = text.partition("=")
        if separator and ("/" not in name and "." not in name):
            path = Path(file)
            check_format(name, "-o")
        else:
            path = Path(text)
            name = _SUFFIXES.get(path.suffix.lower(), "")
        if not path.name:
            raise InputError(f"-o {text!r} names no file.")
        if not name:
            raise InputError(
                f"-o {text!r} does not say its format; end the name in "
                f"{', '.join(_SUFFIXES)} or write FORMAT=FILE."
            )
        if not path.parent.is_dir():
            raise InputError(f"-o {text!r}: there is no folder {path.parent}.")
        return cls(format=name, path=path)


def check_format(name: str, option: str = "--format", known: Sequence[str] = FORMATS) -> str:
    """Returns `name`.

    Raises:
        InputError: It is not among the known renderings.
    """
    if name not in known:
        hint = nearest(name, known, count=1)
        raise InputError(
            f"{option} {name!r} is none of {', '.join(known[:-1])} and {known[-1]}{hint or '.'}"
        )
    return name


def render(report: Report, name: str) -> str:
    """The report in the format of that name; each is a module, loaded when it is asked for."""
    if name == "json":
        return report.to_json()
    if name == "text":
        return importlib.import_module("rksp.report.terminal").plain(report)
    return importlib.import_module(f"rksp.report.{name}").render(report)
