"""Reports in and out of files: what score, report and diff share."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from rksp.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from rksp.confirm.schema import ConfirmReport
    from rksp.report.formats import Output
    from rksp.report.schema import Report
    from rksp.report.sweep import SweepReport

    AnyReport = Report | ConfirmReport | SweepReport

_Kind = TypeVar("_Kind")
_FORMATS_OF = {
    "confirm": ("text", "json", "html"),
    "grid": ("text", "json", "html", "markdown", "junit"),
}
FORMAT_HELP = "text, json, markdown, sarif, junit, github, gitlab or html."
OUTPUT_HELP = "Also write FILE (.json .md .sarif .xml .html .txt) or FORMAT=FILE; repeatable."
# What changes where the answer goes or how it counts, but not the answer.
_NOT_THE_ANSWER = ("output_format", "output", "exit_zero", "fail_on", "baseline", "threads", "keep")


def load(file: Path) -> Report:
    """Reads a stored report of `rksp score`.

    Raises:
        InputError: The file cannot be read.
        ArtifactError: It is no report of this schema.
    """
    from rksp.report.schema import Report  # not for --help

    return _validated(file, _read(file), Report)


def load_any(file: Path) -> AnyReport:
    """Reads a stored report of `rksp score`, `confirm` or `grid`; raises as `load`."""
    content = _read(file)
    try:
        document = json.loads(content)
    except ValueError:
        document = None  # the schema will say what is wrong
    kind = document.get("kind", "score") if isinstance(document, dict) else "score"
    return _validated(file, content, schema_of(kind))


def schema_of(kind: str) -> type[AnyReport]:
    """The schema of the report that a command makes.

    Raises:
        InputError: No command of that name makes one.
    """
    if kind == "score":
        from rksp.report.schema import Report

        return Report
    if kind == "confirm":
        from rksp.confirm.schema import ConfirmReport

        return ConfirmReport
    if kind == "grid":
        from rksp.report.sweep import SweepReport

        return SweepReport
    raise InputError(f"There is no report of {kind!r}; rksp score, confirm and grid make one.")


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


def outputs(output_format: str, files: list[str] | None, kind: str = "score") -> list[Output]:
    """Checks `--format` and reads every `-o`, before any work is done for them.

    Args:
        output_format: Of stdout.
        files: As typed.
        kind: The command whose report it is.

    Raises:
        InputError: A format is not among those of that report, or a file cannot be written.
    """
    from rksp.report.formats import FORMATS, Output, check_format

    known = _FORMATS_OF.get(kind, FORMATS)
    check_format(output_format, known=known)
    found = [Output.parse(file) for file in files or []]
    for output in found:
        check_format(output.format, f"-o {output.path}:", known)
    return found


def emit(report: AnyReport, output_format: str, files: list[Output]) -> None:
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

    _print(report, Console(highlight=False))


def _render(report: AnyReport, name: str) -> str:
    """In a format by name.

    Raises:
        InputError: A report of this kind has no such rendering.
    """
    from rksp.report import formats

    kind = _kind(report)
    if kind == "score":
        return formats.render(report, name)
    formats.check_format(name, f"For a report of rksp {kind}, --format", _FORMATS_OF[kind])
    if name == "json":
        return report.to_json()
    if name == "text":
        from rich.console import Console

        stream = io.StringIO()
        _print(report, Console(file=stream, width=100, highlight=False, color_system=None))
        return stream.getvalue()
    if kind == "confirm":
        from rksp.report import confirmation

        return confirmation.render(report)
    from rksp.report import sweep, sweep_summary

    if name == "html":
        return sweep.render(report)
    return sweep_summary.markdown(report) if name == "markdown" else sweep_summary.junit(report)


def _print(report: AnyReport, console: Console) -> None:
    kind = _kind(report)
    if kind == "score":
        from rksp.report.terminal import render

        render(report, console)
    elif kind == "confirm":
        from rksp.confirm.terminal import render

        render(report, console)
    else:
        from rksp.grid.terminal import render

        console.file.write(render(report.cells, report.cells, report.axes))


def _kind(report: AnyReport) -> str:
    return getattr(report, "kind", "score")


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
            words.append(_long(parameter))
        elif value != parameter.default:
            many = value if isinstance(value, list | tuple) else [value]
            words += [word for part in many for word in (_long(parameter), str(part))]
    return shlex.join(words)


def _long(parameter: Any) -> str:
    """Return the first long name of an option; aliases follow it."""
    return next(name for name in parameter.opts if name.startswith("--"))
