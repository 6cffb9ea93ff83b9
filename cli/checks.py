"""`rksp checks` and `rksp explain`: what rksp looks for, and what each finding means."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rksp.errors import InputError


def checks(
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> int:
    """List every check with its code, its worst level and its name."""
    from rksp.checks.registry import CHECKS

    if output_format not in ("text", "json"):
        raise InputError(f"--format {output_format!r} is neither text nor json.")
    if output_format == "json":
        fields = ("code", "level", "name", "title", "measures", "healthy", "fix", "source")
        rows = [{field: getattr(check, field) for field in fields} for check in CHECKS]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        print(f"{check.code}  {check.level:<7}  {check.name:<{width}}  {check.title}")
    print("rksp explain CODE teaches each.", file=sys.stderr)
    return 0


def explain(
    check: Annotated[str, typer.Argument(help="A code (RKSP101) or name (initial-loss).")],
) -> int:
    """Teach one check: what it measures, why it matters, what is healthy, how to fix it."""
    from rich.console import Console
    from rich.table import Table

    from rksp.checks.registry import find_check

    found = find_check(check)
    console = Console(highlight=False, markup=False)
    console.print(f"{found.code} {found.name} (at worst: {found.level})", style="bold")
    console.print(found.title)
    console.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for title, text in (
        ("Measures", found.measures),
        ("Why", found.why),
        ("Healthy", found.healthy),
        ("Fix", found.fix),
        ("Trips it", found.failing),
        ("Does not", found.stable),
        ("Source", found.source),
    ):
        table.add_row(title, text)
    console.print(table)
    return 0
