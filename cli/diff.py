"""`rksp diff`: what changed between two stored reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.rendering import conclude, emit, format_help, load, outputs
from rksp.ground.errors import InputError


def diff(
    old: Annotated[Path, typer.Argument(help="The older JSON report.")],
    new: Annotated[Path, typer.Argument(help="The newer one.")],
    fail_on: Annotated[
        str,
        typer.Option(
            help=("Exit with 1 for a new or worse issue of this level: error, warning or never.")
        ),
    ] = "error",
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Never exit with 1.")] = False,
    output_format: Annotated[str, typer.Option("--format", help=format_help("diff"))] = "text",
) -> int:
    """Show which issues are new, worse, better, fixed or unchanged."""
    from rksp.documents.score import DiffReport
    from rksp.report.diff import compare
    from rksp.report.gate import Gate

    outputs(output_format, None, "diff")
    if fail_on not in ("error", "warning", "never"):
        raise InputError(f"--fail-on {fail_on!r} is unknown; use error, warning or never.")
    after = load(new)
    changed = compare(load(old), after)
    gate = Gate.parse(fail_on).judge(after, changed)
    document = DiffReport.of(changed, gate=gate)
    emit(document, output_format, [])
    return conclude(document, exit_zero=exit_zero)
