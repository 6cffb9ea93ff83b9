"""`rksp checks`: list the checks."""

from __future__ import annotations

import json
import sys

from rksp.cli.options import TextOrJson


def checks(
    output_format: TextOrJson = "text",
) -> int:
    """List all checks with their codes, worst levels, names and titles."""
    from rksp.checks.registry import CHECKS

    if output_format == "json":
        texts = ("title", "measures", "healthy", "fix", "source", "field")
        rows = [
            {name: getattr(check, name) for name in ("code", "level", "name")}
            | {name: getattr(check.texts, name) for name in texts}
            for check in CHECKS
        ]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(len(check.name) for check in CHECKS)
    for check in CHECKS:
        print(f"{check.code}  {check.level:<7}  {check.name:<{width}}  {check.texts.title}")
    sys.stdout.flush()  # a closed pipe ends the command here, before the hint
    print("rksp explain CODE explains a check.", file=sys.stderr)
    return 0
