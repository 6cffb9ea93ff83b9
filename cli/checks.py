"""`rksp checks`: list the checks."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rksp.ground.errors import InputError


def checks(
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> int:
    """List all checks with their codes, worst levels, names and titles."""
    from rksp.checks.registry import CHECKS

    if output_format not in ("text", "json"):
        raise InputError(f"--format {output_format!r} is unknown; use text or json.")
    if output_format == "json":
        fields = ("code", "level", "name", "title", "measures", "healthy", "fix", "source", "field")
        rows = [{field: getattr(check, field) for field in fields} for check in CHECKS]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        print(f"{check.code}  {check.level:<7}  {check.name:<{width}}  {check.title}")
    sys.stdout.flush()  # a closed pipe ends the command here, before the hint
    print("rksp explain CODE explains a check.", file=sys.stderr)
    return 0
