"""`rksp report` and `rksp schema`: stored reports and their schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, with_options
from rksp.cli.output_options import ReportOutput
from rksp.cli.rendering import emit, intact, load_any, outputs, schema_of

if TYPE_CHECKING:
    from rksp.documents.base import Document


@with_options
def report(
    file: Annotated[Path, typer.Argument(help="A JSON report of rksp, or the log of rksp watch.")],
    output: Annotated[ReportOutput, Panel(title="Output")],
) -> int:
    """Show a stored report in any format."""
    document: Document
    if file.suffix == ".jsonl":
        from rksp.confirm.watched import watched_run

        document = watched_run(file)
    else:
        document = load_any(file)
    files = outputs(output.output_format, output.output, document.kind)
    with intact(file):
        emit(document, output.output_format, files)
    return 0


def schema(
    command: Annotated[
        str, typer.Argument(help="score, confirm, grid, diff, runs or watch.")
    ] = "score",
) -> int:
    """Print the JSON Schema of the report that a command makes."""
    from rksp.report.schema import described

    content = described(schema_of(command))
    sys.stdout.write(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return 0
