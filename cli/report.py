"""`rksp report` and `rksp schema`: stored reports and their schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.rendering import (
    emit,
    format_help,
    intact,
    load_any,
    output_help,
    outputs,
    schema_of,
)


def report(
    file: Annotated[
        Path, typer.Argument(help="A JSON report of rksp score, confirm, grid or diff.")
    ],
    output_format: Annotated[str, typer.Option("--format", help=format_help())] = "text",
    output: Annotated[list[str] | None, typer.Option("-o", "--output", help=output_help())] = None,
) -> int:
    """Show a stored report in any format."""
    document = load_any(file)
    files = outputs(output_format, output, document.kind)
    with intact(file):
        emit(document, output_format, files)
    return 0


def schema(
    command: Annotated[str, typer.Argument(help="score, confirm, grid or diff.")] = "score",
) -> int:
    """Print the JSON Schema of the report that a command makes."""
    content = schema_of(command).model_json_schema()
    sys.stdout.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return 0
