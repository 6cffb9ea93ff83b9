"""The tables of an SQLite file, without opening it for writing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from rksp.own_runs.readers.files import head_of

_MARK = b"SQLite format 3\x00"


def uri_of(path: Path) -> str:
    """Return the URI of a file for SQLite; what its name holds cannot end the path."""
    return f"file:{quote(path.absolute().as_posix())}"


def tables_of(path: Path) -> set[str]:
    """Return the names of the tables of a file; empty for one that is no such file."""
    if not head_of(path).startswith(_MARK):
        return set()
    try:
        with closing(sqlite3.connect(f"{uri_of(path)}?mode=ro", uri=True)) as file:
            return {name for (name,) in file.execute("select name from sqlite_master")}
    except sqlite3.Error:
        return set()
