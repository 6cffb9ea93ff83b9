"""Run scripts under `rksp watch` as a user would, and keep a row of each run in a CSV file."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

Row = TypeVar("Row", bound=NamedTuple)
_READ: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text == "True",
}


def watched(log: Path, script: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script under the watch, which stops it on an alarm.

    Args:
        log: Where the watch writes; a second run goes on in it.
        script: What follows `python`: options, the script and its words.
        options: More of the watch.
    """
    watch = [sys.executable, "-m", "rksp", "watch", "--log", str(log), "--on-alarm", "stop"]
    return subprocess.run(
        [*watch, *options, "--", sys.executable, *script],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )


def read_rows(kind: type[Row], path: Path) -> list[Row]:
    """Return the rows of a table; none if there is no such file."""
    if not path.exists():
        return []
    types = {name: _READ.get(one.__name__, str) for name, one in get_type_hints(kind).items()}
    with path.open(encoding="utf-8", newline="") as file:
        return [
            kind(**{name: types[name](text) for name, text in line.items()})
            for line in csv.DictReader(file)
        ]


def append_rows(path: Path, rows: Iterable[NamedTuple]) -> None:
    """Append rows of one kind to a table, below a header if it is new."""
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in rows:
            if file.tell() == 0:
                writer.writerow(row._fields)
            writer.writerow(row)
