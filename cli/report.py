"""`rksp report` and `rksp schema`: stored reports again, and what they look like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.rendering import FORMAT_HELP, OUTPUT_HELP, emit, load_any, outputs, schema_of


def report(
    file: Annotated[Path, typer.Argument(help="A JSON report of rksp score, confirm or grid.")],
    output_format: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "text",
    output: Annotated[list[str] | None, typer.Option("-o", "--output", help=OUTPUT_HELP)] = None,
) -> int:
    """Show a stored report, in any format."""
    files = outputs(output_format, output)
    emit(load_any(file), output_format, files)
    return 0


def schema(
    command: Annotated[str, typer.Argument(help="score, confirm or grid.")] = "score",
) -> int:
    """Print the JSON Schema of the report that a command makes."""
    content = schema_of(command).model_json_schema()
    sys.stdout.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return 0
