"""`rksp report` and `rksp schema`: stored reports again, and what they look like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.rendering import FORMAT_HELP, OUTPUT_HELP, emit, load_any, outputs


def report(
    file: Annotated[Path, typer.Argument(help="A JSON report of rksp score or rksp confirm.")],
    output_format: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[list[str] | None, typer.Option("-o", "--output", help=OUTPUT_HELP)] = None,
) -> int:
    """Shows a stored report, in any format."""
    files = outputs(output_format, output)
    emit(load_any(file), output_format, files)
    return 0


def schema() -> int:
    """Prints the JSON Schema of the report."""
    from rksp.report.schema import Report

    sys.stdout.write(json.dumps(Report.model_json_schema(), indent=1, sort_keys=True) + "\n")
    return 0
