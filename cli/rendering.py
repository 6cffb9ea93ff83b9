"""Reports in and out of files: what score, report and diff share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rksp.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from rksp.report.formats import Output
    from rksp.report.schema import Report

FORMAT_HELP = "text, json, markdown, sarif, junit, github, gitlab or html."
OUTPUT_HELP = "Also write FILE (.json .md .sarif .xml .html .txt) or FORMAT=FILE; repeatable."
# What changes where the answer goes or how it counts, but not the answer.
_NOT_THE_ANSWER = ("output_format", "output", "exit_zero", "fail_on", "baseline", "threads")


def load(file: Path) -> Report:
    """Reads a stored report.

    Raises:
        InputError: The file cannot be read.
        ArtifactError: It is no report of this schema.
    """
    from pydantic import ValidationError  # not for --help

    from rksp.report.schema import Report

    try:
        return Report.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
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


def emit(report: Report, output_format: str, files: list[Output]) -> None:
    """Writes every file, then the asked-for rendering alone on stdout."""
    from rksp.report.formats import render

    rendered = [(file.path, render(report, file.format)) for file in files]
    for path, text in rendered:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    if output_format == "text":
        from rich.console import Console

        from rksp.report.terminal import render as show

        show(report, Console(highlight=False))
    else:
        sys.stdout.write(render(report, output_format))


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
