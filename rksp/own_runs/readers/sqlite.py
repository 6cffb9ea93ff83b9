"""The tables of an SQLite file, without opening it for writing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rksp.ground.budgets import PAST_RUNS, bound_queries
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
            found = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {name for (name,) in found}
    except sqlite3.Error:
        return set()


@contextmanager
def queries_that_end(path: Path) -> Iterator[None]:
    """Bound what SQLAlchemy's connections to a file may compute while the block runs.

    Raises:
        ArtifactError: The file has views or triggers.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def bound(connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            bound_queries(connection, path, PAST_RUNS)

    event.listen(Engine, "connect", bound)
    try:
        yield
    finally:
        event.remove(Engine, "connect", bound)
