"""`rksp checks`: list the checks."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from rksp.ground.errors import InputError


def checks(
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    is_audit: Annotated[
        bool,
        typer.Option("--audit", help="Run the checks over public failures and successes."),
    ] = False,
) -> int:
    """List all checks with their codes, worst levels, names and titles."""
    from rksp.checks.registry import CHECKS

    if output_format not in ("text", "json"):
        raise InputError(f"--format {output_format!r} is unknown; use text or json.")
    if is_audit:
        return _audit(output_format)
    if output_format == "json":
        fields = ("code", "level", "name", "title", "measures", "healthy", "fix", "source", "field")
        rows = [{field: getattr(check, field) for field in fields} for check in CHECKS]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        print(f"{check.code}  {check.level:<7}  {check.name:<{width}}  {check.title}")
    print("rksp explain CODE explains a check.", file=sys.stderr)
    return 0


def _audit(output_format: str) -> int:
    """Print hits, misses and false alarms of each check over the corpus."""
    from rksp.checks.audit import audit

    seen = audit()
    if output_format == "json":
        sys.stdout.write(json.dumps(asdict(seen), indent=1, ensure_ascii=False) + "\n")
        return 0
    width = max(len(tally.name) for tally in seen.tallies)
    print(f"{'code':<8}  {'name':<{width}}  {'hits':>4}  {'misses':>6}  {'false alarms':>12}")
    for tally in seen.tallies:
        print(
            f"{tally.code:<8}  {tally.name:<{width}}  {tally.hits:>4}  {tally.misses:>6}  "
            f"{tally.false_alarms:>12}"
        )
    visible = len(seen.named) + len(seen.missed)
    print()
    print(
        f"{len(seen.warned)} of {seen.healthy} public successes carry a warning, "
        f"{len(seen.in_error)} an error; the cause of {len(seen.named)} of {visible} public "
        f"failures is named, and {len(seen.unseen)} more cannot be seen before training."
    )
    for title, rows in (
        ("False alarm", seen.warned),
        ("Missed", seen.missed),
        ("Not visible", seen.unseen),
    ):
        for name, detail in rows:
            print(f"{title}: {name}: {detail}")
    return 0
