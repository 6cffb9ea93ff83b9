"""Reports in and out of files: what score, report and diff share."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import typer

from rksp.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from rksp.confirm.schema import ConfirmReport
    from rksp.report.formats import Output
    from rksp.report.schema import Report

_Kind = TypeVar("_Kind")
_CONFIRMS = re.compile(rb'^ "kind": "confirm"', re.MULTILINE)  # as `to_json` writes it
FORMAT_HELP = "text, json, markdown, sarif, junit, github, gitlab or html."
OUTPUT_HELP = "Also write FILE (.json .md .sarif .xml .html .txt) or FORMAT=FILE; repeatable."
# What changes where the answer goes or how it counts, but not the answer.
_NOT_THE_ANSWER = ("output_format", "output", "exit_zero", "fail_on", "baseline", "threads")


def load(file: Path) -> Report:
    """Reads a stored report of `rksp score`.

    Raises:
        InputError: The file cannot be read.
        ArtifactError: It is no report of this schema.
    """
    from rksp.report.schema import Report  # not for --help

    return _validated(file, _read(file), Report)


def load_any(file: Path) -> Report | ConfirmReport:
    """Reads a stored report of `rksp score` or `rksp confirm`; raises as `load`."""
    from rksp.report.schema import Report

    content = _read(file)
    if not _CONFIRMS.search(content):
        return _validated(file, content, Report)
    from rksp.confirm.schema import ConfirmReport

    return _validated(file, content, ConfirmReport)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None


def _validated(file: Path, content: bytes, kind: type[_Kind]) -> _Kind:
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise ArtifactError(
            f"{file} is not a report of this rksp: {where}: {first['msg']}."
        ) from None


def outputs(output_format: str, files: list[str] | None) -> list[Output]:
    """Checks `--format` and reads every `-o`, before any work is done for them."""
    from rksp.report.formats import Output, check_format

    check_format(output_format)
    return [Output.parse(file) for file in files or []]


def emit(report: Report | ConfirmReport, output_format: str, files: list[Output]) -> None:
    """Writes every file, then the asked-for rendering alone on stdout."""
    rendered = [(file.path, _render(report, file.format)) for file in files]
    shown = None if output_format == "text" else _render(report, output_format)
    for path, text in rendered:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    if shown is not None:
        sys.stdout.write(shown)
        return
    from rich.console import Console

    _terminal(report).render(report, Console(highlight=False))


def _render(report: Report | ConfirmReport, name: str) -> str:
    """In a format by name; a confirmation has three."""
    from rksp.report import formats

    if not _is_confirmation(report):
        return formats.render(report, name)
    if name == "json":
        return report.to_json()
    if name == "html":
        from rksp.report import confirmation

        return confirmation.render(report)
    raise InputError(f"A report of rksp confirm has no {name!r} rendering, but json and html.")


def _terminal(report: Report | ConfirmReport) -> ModuleType:
    if _is_confirmation(report):
        from rksp.confirm import terminal
    else:
        from rksp.report import terminal
    return terminal


def _is_confirmation(report: Report | ConfirmReport) -> bool:
    return getattr(report, "kind", "score") == "confirm"


def command_line(context: typer.Context) -> str:
    """The command that gives the same answer: what was set, whether typed or a default of a file.

    Options equal to their built-in default, and those that only say where the answer goes, are left
    out.
    """
    words = context.command_path.split()
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        if parameter.name in _NOT_THE_ANSWER or value in (None, [], ()):
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif value is True and parameter.is_flag:
            words.append(parameter.opts[-1])
        elif value != parameter.default:
            many = value if isinstance(value, list | tuple) else [value]
            words += [word for part in many for word in (parameter.opts[-1], str(part))]
    return shlex.join(words)
