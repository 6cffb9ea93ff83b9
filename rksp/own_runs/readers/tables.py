"""Tables of runs, one a row: CSV, JSON Lines and Parquet, as trackers export them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rksp.own_runs.run import RawRun, RunReader
from rksp.recipe_files.rows import ROWS, read_rows

_NAMES = ("Name", "name", "run_name", "run_id", "id", "ID", "trial_id", "number")
_STATES = ("State", "state", "status", "_state")


def _matches(path: Path) -> bool:
    return path.suffix.lower() in ROWS and path.is_file()


def _read(path: Path) -> Iterator[RawRun]:
    for number, row in enumerate(read_rows(path), start=1):
        named = next((str(row[name]) for name in _NAMES if name in row), "")
        state = next((str(row[name]) for name in _STATES if name in row), "")
        outcome = row.get("outcome", "")
        yield RawRun(
            name=named or f"row {number}",
            file=path,
            said=row,
            finals=row,
            state=state,
            outcome=outcome if isinstance(outcome, str) else "",
        )


READER = RunReader(name="a table of runs", matches=_matches, read=_read)
