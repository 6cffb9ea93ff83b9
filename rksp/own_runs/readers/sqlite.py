"""The tables of an SQLite file, without opening it for writing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from rksp.own_runs.readers.files import head_of

_MARK = b"SQLite format 3\x00"


def tables_of(path: Path) -> set[str]:
    """Return the names of the tables of a file; empty for one that is no such file."""
    if not head_of(path).startswith(_MARK):
        return set()
    where = f"file:{path.absolute().as_posix()}?mode=ro"
    try:
        with closing(sqlite3.connect(where, uri=True)) as file:
            return {name for (name,) in file.execute("select name from sqlite_master")}
    except sqlite3.Error:
        return set()
