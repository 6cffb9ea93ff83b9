"""`rksp diff`: what changed between two stored reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.options import Panel, with_options
from rksp.cli.output_options import DiffOutput
from rksp.cli.rendering import conclude, emit, load
from rksp.ground.errors import InputError

_FAIL_ON = "Exit with 1 for a new or worse issue of this level: error, warning or never."


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
