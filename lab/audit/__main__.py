"""Run all checks over public runs that failed and public runs that succeeded.

python -m lab.audit
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from lab.audit.audit import audit


def main(arguments: list[str] | None = None) -> None:
    """Print hits, misses and false alarms of each check over the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    seen = audit()
    if parser.parse_args(arguments).json:
        sys.stdout.write(json.dumps(asdict(seen), indent=1, ensure_ascii=False) + "\n")
        return
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


if __name__ == "__main__":
    main()
