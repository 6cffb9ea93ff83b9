"""`rksp diff`: what changed between two stored reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rksp.cli.rendering import load
from rksp.errors import InputError


def diff(
    old: Annotated[Path, typer.Argument(help="The older JSON report.")],
    new: Annotated[Path, typer.Argument(help="The newer one.")],
    fail_on: Annotated[
        str, typer.Option(help="Level of a new or worse issue at which the exit code is 1.")
    ] = "error",
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Never exit with 1.")] = False,
    output_format: Annotated[
        str, typer.Option("--format", help="text, json or markdown.")
    ] = "text",
) -> int:
    """Show which issues are new, worse, better, fixed or unchanged."""
    from rksp.report.diff import compare
    from rksp.report.gate import Gate

    if output_format not in ("text", "json", "markdown"):
        raise InputError(f"--format {output_format!r} is none of text, json and markdown.")
    if fail_on not in ("error", "warning", "never"):
        raise InputError(f"--fail-on {fail_on!r} is none of error, warning and never.")
    after = load(new)
    changed = compare(load(old), after)
    gate = Gate.parse(fail_on).judge(after, changed)
    if output_format == "json":
        content = changed.model_dump() | {"gate": gate.model_dump()}
        sys.stdout.write(json.dumps(content, sort_keys=True, indent=1, allow_nan=False) + "\n")
    elif output_format == "markdown":
        from rksp.report.markdown import comparison

        sys.stdout.write(comparison(changed) + "\n")
    else:
        from rich.console import Console

        from rksp.report.terminal import render_comparison

        render_comparison(changed, Console(highlight=False))
    if gate.failed:
        print(f"rksp: exit {0 if exit_zero else 1}: {'; '.join(gate.reasons)}", file=sys.stderr)
    return 1 if gate.failed and not exit_zero else 0
