"""`rksp report`, `rksp schema` and `rksp diff`: stored reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rksp.cli.options import Panel, with_options
from rksp.cli.output_options import DiffOutput, ReportOutput
from rksp.cli.rendering import conclude, emit, intact, load, load_any, outputs, schema_of
from rksp.ground.errors import InputError

_FAIL_ON = "Exit with 1 for a new or worse issue of this level: error, warning or never."

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


@with_options
def diff(
    old: Annotated[Path, typer.Argument(help="The older JSON report.")],
    new: Annotated[Path, typer.Argument(help="The newer one.")],
    output: Annotated[DiffOutput, Panel(title="Output", helps={"fail_on": _FAIL_ON})],
) -> int:
    """Show which issues are new, worse, better, fixed or unchanged."""
    from rksp.documents.score import DiffReport
    from rksp.report.diff import compare
    from rksp.report.gate import Gate

    if unknown := [one for one in output.fail_on if one not in ("error", "warning", "never")]:
        raise InputError(f"--fail-on {unknown[0]!r} is unknown; use error, warning or never.")
    after = load(new)
    changed = compare(load(old), after)
    gate = Gate.parse(output.fail_on).judge(after, changed)
    document = DiffReport.of(changed, gate=gate)
    emit(document, output.output_format, [])
    return conclude(document, exit_zero=output.exit_zero)
