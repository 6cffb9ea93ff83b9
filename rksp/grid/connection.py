"""Connect to the file of a grid, so that a full disk is said in a sentence."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from rksp.errors import Incomplete

_PATIENCE = 30.0  # seconds to wait for another process that writes
_CANNOT_WRITE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS cells (
        key TEXT PRIMARY KEY, position INTEGER NOT NULL, init TEXT NOT NULL,
        target TEXT NOT NULL, overrides TEXT NOT NULL, seed INTEGER NOT NULL,
        recipe TEXT NOT NULL, labels TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT 'todo', owner TEXT, lease REAL,
        tries INTEGER NOT NULL DEFAULT 0, failure TEXT, message TEXT, result TEXT)""",
    "CREATE INDEX IF NOT EXISTS by_state ON cells (state, position)",
    """CREATE TABLE IF NOT EXISTS profiles (
        init TEXT NOT NULL, owner TEXT NOT NULL, seconds REAL)""",
)


class Connection(sqlite3.Connection):
    """A connection that raises `Incomplete` if the disk is full or fails, or the file is held."""

    def execute(self, *given: object) -> sqlite3.Cursor:
        """Execute one statement."""
        with _said():
            return super().execute(*given)

    def executemany(self, *given: object) -> sqlite3.Cursor:
        """Execute one statement for each row."""
        with _said():
            return super().executemany(*given)


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # of the extended code
        if primary not in _CANNOT_WRITE:
            raise
        raise Incomplete(
            f"The grid's file cannot be written ({error}); what was stored stays. Run the same "
            "command again to resume."
        ) from error


def opened(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file of a grid; a new one gets its tables.

    Raises:
        sqlite3.DatabaseError: It is another kind of file.
        Incomplete: The disk is full or fails, or another process holds the file.
    """
    if not read_only:
        base = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, factory=Connection)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", *_TABLES):
            base.execute(statement)
        return base
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    for options in ("", "&immutable=1"):  # the second creates no file beside it
        base = sqlite3.connect(address + options, uri=True, timeout=_PATIENCE, isolation_level=None)
        try:
            base.execute("SELECT COUNT(*) FROM meta")
        except sqlite3.OperationalError:
            base.close()
            if options:
                raise
        else:
            return base
    raise AssertionError("unreachable: one of the two returns or raises")


class Transaction:
    """A transaction that locks the file before its first read, so that no cell is claimed twice."""

    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base

    def __enter__(self) -> None:
        self._base.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._base.execute("COMMIT")
        elif self._base.in_transaction:  # a full disk may have ended it
            self._base.execute("ROLLBACK")
