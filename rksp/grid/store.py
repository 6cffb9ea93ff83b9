"""The grid on disk: one SQLite file in which every cell has exactly one state and one result.

A cell is `todo`, `running` under a lease, `done` or `failed`. Only the owner of the lease can
write. A cell is open again once its lease has expired or its process is gone. Several
coordinators may work on one file on one machine. Never put the file on a network file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import psutil

from rksp.grid.cell import Cell, init_keys, recipes_of
from rksp.grid.group import FINAL, CellAnswer, CellGroup, Failure, GroupCell, Options
from rksp.ground.budgets import QUERIES, STORED_CELLS, bound_queries
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import check_link, check_writable
from rksp.ground.model import Strict, definite
from rksp.ground.text import safe_json, safe_strings
from rksp.ground.versions import version


def made_by() -> dict[str, str]:
    """Return the versions and a digest of the classifier, without importing torch or sklearn."""
    source = files("rksp.classifiers") / "fitted" / "edge.json"
    content = source.read_bytes() if source.is_file() else b""
    return {
        "rksp": version("rksp"),
        "classifier": hashlib.sha256(content).hexdigest()[:12],
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


SCHEMA = "rksp-grid-3"
TRIES = 3
_IN_JSON = ("overrides", "recipe", "labels", "result")  # columns
# json.dumps would make one a cell.
_TEXT = json.JSONEncoder()
_LABELS = json.JSONEncoder(default=str)
# The disk or another process is the cause, and not the content.
_OF_THE_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY)
_OWNER = re.compile(r"(?P<host>.+):(?P<process>\d+):[0-9a-f]+")
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cells (
    key TEXT PRIMARY KEY, position INTEGER NOT NULL, init TEXT NOT NULL,
    target TEXT NOT NULL, overrides TEXT NOT NULL, seed INTEGER NOT NULL,
    has_weights INTEGER NOT NULL, recipe TEXT NOT NULL, unknown TEXT NOT NULL,
    labels TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'todo', owner TEXT, lease REAL, tries INTEGER NOT NULL DEFAULT 0,
    failure TEXT, message TEXT, result TEXT);
CREATE INDEX IF NOT EXISTS by_state ON cells (state, position);
CREATE TABLE IF NOT EXISTS profiles (init TEXT NOT NULL, owner TEXT NOT NULL, seconds REAL);
"""


class Row(Strict):
    """One cell with its state and, once it is done, its result."""

    key: str
    position: int
    init: str
    target: str
    overrides: dict[str, object]
    seed: int
    recipe: dict[str, object]
    labels: dict[str, object]
    state: str
    tries: int
    failure: str | None
    message: str | None
    result: CellAnswer | None

    @property
    def learning_rate(self) -> float | None:
        """The peak rate of its recipe; None where it has none."""
        rate = self.recipe.get("learning_rate")
        return rate if isinstance(rate, int | float) else None


class GridStore:
    """The cells of a grid and their owners.

    Args:
        path: The file; created if absent.
        owner: The name under which cells are claimed; by default unique to this object.
        read_only: Only read; the file or its folder may then be read-only.

    Raises:
        InputError: The folder does not exist, or it cannot be written.
        ArtifactError: The file is not a grid store.
        sqlite3.OperationalError: The disk is full or fails, or another process holds the file.
    """

    def __init__(self, path: Path, *, owner: str | None = None, read_only: bool = False) -> None:
        self.path, self._is_read_only = path, read_only
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        if not read_only:
            check_writable(path)
        try:
            self._base = _opened(path, read_only)
            bound_queries(self._base, path, QUERIES if read_only else None)
            found = self._meta("schema")
        except sqlite3.DatabaseError as error:
            primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # of the extended code
            if primary in _OF_THE_DISK:
                raise
            raise ArtifactError(f"{path} is not a grid store ({error}).") from error
        if found not in (None, SCHEMA):
            raise ArtifactError(f"{path} has schema {found!r}; this rksp reads {SCHEMA!r}.")

    def close(self) -> None:
        """Release the cells that this owner holds, and close the file."""
        if not self._is_read_only:
            with contextlib.suppress(sqlite3.OperationalError):  # disk full: the leases expire
                self.release()
        self._base.close()

    def __enter__(self) -> GridStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def fill(
        self,
        cells: Sequence[Cell],
        options: Options,
        assumed: Mapping[str, str] | None = None,
    ) -> int:
        """Put a plan into an empty store, or resume the same plan.

        Args:
            cells: The cells of the plan.
            options: How they are measured.
            assumed: What nobody decided about the recipes, in words by field.

        Returns:
            The number of cells that were there already.

        Raises:
            InputError: The store holds another grid, or another version of rksp made it.
        """
        inits = init_keys(cells, options)
        recipes = recipes_of(cells)
        keys = [
            cell.key(options, init, recipe)
            for cell, init, recipe in zip(cells, inits, recipes, strict=True)
        ]
        maker = made_by()
        plan = hashlib.sha256("\n".join(sorted(set(keys))).encode()).hexdigest()
        with self.together():
            stored = self._meta("plan")
            if stored is not None and stored != plan:
                raise InputError(
                    f"{self.path} holds another grid; write to another file, or give the same "
                    "grid and options to resume."
                )
            known = {"assumed": json.dumps(assumed or {})}
            if stored is None:
                known |= {"schema": SCHEMA, "plan": plan, "made_by": json.dumps(maker)}
                known["options"] = options.model_dump_json()
            else:
                self._check_maker(maker)
            self._base.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", known.items())
            if stored is not None:
                return len(keys)
            self._base.executemany(
                "INSERT OR IGNORE INTO cells (key, position, init, target, overrides, seed,"
                " has_weights, recipe, unknown, labels) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        key,
                        position,
                        init,
                        cell.target,
                        json.dumps(dict(cell.overrides)),
                        cell.seed,
                        cell.has_weights,
                        _TEXT.encode(recipe),
                        json.dumps(dict(cell.unknown)),
                        _LABELS.encode(dict(cell.labels)),
                    )
                    for position, (key, init, cell, recipe) in enumerate(
                        zip(keys, inits, cells, recipes, strict=True)
                    )
                ],
            )
        return 0

    def claim(self, lease: float, options: Options | None = None) -> CellGroup | None:
        """Claim the next group, all open cells of one initialization, for `lease` seconds.

        Args:
            lease: Seconds.
            options: How to measure; by default as the store says.
        """
        now = time.time()
        with self.together():
            self._reclaim(now)
            first = self._base.execute(
                "SELECT init FROM cells WHERE state = 'todo' ORDER BY position LIMIT 1"
            ).fetchone()
            if first is None:
                return None
            rows = self._base.execute(
                "SELECT target, overrides, seed, has_weights, key, recipe, unknown FROM cells"
                " WHERE state = 'todo' AND init = ? ORDER BY position",
                first,
            ).fetchall()
            self._base.execute(
                "UPDATE cells SET state = 'running', owner = ?, lease = ?"
                " WHERE state = 'todo' AND init = ?",
                (self.owner, now + lease, first[0]),
            )
        target, overrides, seed, has_weights, *_ = rows[0]
        stored = options or Options.model_validate_json(definite(self._meta("options")))
        return CellGroup(
            target=target,
            overrides=json.loads(overrides),
            seed=seed,
            has_weights=has_weights,
            options=stored,
            cells=tuple(
                GroupCell(key=key, recipe=recipe, unknown=json.loads(unknown))
                for *_, key, recipe, unknown in rows
            ),
        )

    def renew(self, lease: float) -> None:
        """Extend every lease of this owner to `lease` seconds from now."""
        self._base.execute(
            "UPDATE cells SET lease = ? WHERE state = 'running' AND owner = ?",
            (time.time() + lease, self.owner),
        )

    def profiled(self, key: str, seconds: float) -> None:
        """Record the seconds of one profile, made for the group of this cell."""
        self._base.execute(
            "INSERT INTO profiles SELECT init, ?, ? FROM cells WHERE key = ?",
            (self.owner, seconds, key),
        )

    def finish(self, key: str, result: CellAnswer) -> bool:
        """Store a result if this owner still holds the cell; return whether it did."""
        done = self._base.execute(
            "UPDATE cells SET state = 'done', result = ?, owner = NULL, lease = NULL,"
            " failure = NULL, message = NULL WHERE key = ? AND state = 'running' AND owner = ?",
            (result.model_dump_json(), key, self.owner),
        )
        return done.rowcount == 1

    def fail(self, keys: Iterable[str], failure: Failure, message: str) -> None:
        """Count a try against cells that this owner holds; the last try is final."""
        is_final = failure in FINAL
        self._base.executemany(
            "UPDATE cells SET tries = tries + 1, failure = ?, message = ?, owner = NULL,"
            " lease = NULL, state = CASE WHEN ? OR tries + 1 >= ? THEN 'failed' ELSE 'todo' END"
            " WHERE key = ? AND state = 'running' AND owner = ?",
            [(failure, message, is_final, TRIES, key, self.owner) for key in keys],
        )

    def release(self, keys: Iterable[str] | None = None) -> None:
        """Return cells to the queue without counting a try; by default all of this owner."""
        where = "WHERE state = 'running' AND owner = ?"
        change = f"UPDATE cells SET state = 'todo', owner = NULL, lease = NULL {where}"
        if keys is None:
            self._base.execute(change, (self.owner,))
        else:
            self._base.executemany(f"{change} AND key = ?", [(self.owner, key) for key in keys])

    def retry_failed(self) -> int:
        """Open failed cells again and return their number."""
        return self._base.execute(
            "UPDATE cells SET state = 'todo', tries = 0 WHERE state = 'failed'"
        ).rowcount

    def counts(self) -> dict[str, int]:
        """Return the number of cells in each state."""
        found = dict(self._base.execute("SELECT state, COUNT(*) FROM cells GROUP BY state"))
        return {state: found.get(state, 0) for state in ("todo", "running", "done", "failed")}

    def made_by(self) -> dict[str, str]:
        """Return the versions that the numbers come from; empty before the store is filled."""
        found: dict[str, str] = json.loads(self._meta("made_by") or "{}")
        return found

    def assumed(self) -> dict[str, object]:
        """Return what nobody decided about the recipes, in words by field.

        Raises:
            ArtifactError: The file is damaged.
        """
        try:
            found = safe_strings(json.loads(self._meta("assumed") or "{}"))
        except ValueError as error:
            raise ArtifactError(f"{self.path} is damaged ({error}).") from error
        return found if isinstance(found, dict) else {}

    def profiles(self) -> list[float]:
        """Return the seconds of every profile."""
        return [s for (s,) in self._base.execute("SELECT seconds FROM profiles ORDER BY rowid")]

    def rows(self) -> list[Row]:
        """Return every cell, in the order of the grid, with strings that are safe to print.

        Raises:
            ArtifactError: The file is damaged.
        """
        names = list(Row.model_fields)
        read = [safe_json if name in _IN_JSON else safe_strings for name in names]
        rows: list[Row] = []
        try:
            found = self._base.execute(f"SELECT {', '.join(names)} FROM cells ORDER BY position")
            for values in found:
                known = zip(names, read, values, strict=True)
                row = {n: None if v is None else safe(v) for n, safe, v in known}
                rows.append(Row.model_validate(row))
                STORED_CELLS.check(len(rows), self.path)
        except (sqlite3.DatabaseError, ValueError, TypeError, RecursionError) as error:
            raise ArtifactError(f"{self.path} is damaged ({error}).") from error
        return rows

    def _reclaim(self, now: float) -> None:
        held = self._base.execute(
            "SELECT DISTINCT owner FROM cells WHERE state = 'running' AND owner != ?", (self.owner,)
        ).fetchall()
        gone = [(owner,) for (owner,) in held if not _may_live(owner)]
        back = "UPDATE cells SET state = 'todo', owner = NULL, lease = NULL WHERE state = 'running'"
        self._base.executemany(f"{back} AND owner = ?", gone)
        # Not this owner's own: after a jump of the clock it would claim its work a second time.
        self._base.execute(f"{back} AND lease < ? AND owner != ?", (now, self.owner))

    def _check_maker(self, maker: dict[str, str]) -> None:
        stored = self.made_by()
        for name in ("rksp", "classifier"):
            if stored.get(name) != maker[name]:
                raise InputError(
                    f"{self.path} was made with {name} {stored.get(name)}, and this rksp has "
                    f"{maker[name]}; write to another file."
                )

    def _meta(self, name: str) -> str | None:
        row = self._base.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Make all writes of a block one, which locks the file before its first read.

        So no cell is claimed twice, and many writes cost as much as one.
        """
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._base.in_transaction:  # a full disk has ended it
                self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")


def _opened(path: Path, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        for beside in ("-wal", "-shm", "-journal"):  # files that SQLite writes
            check_link(path.with_name(f"{path.name}{beside}"))
        base = sqlite3.connect(path, timeout=30, isolation_level=None)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
        base.executescript(_TABLES)
        return base
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    for options in ("", "&immutable=1"):  # the second creates no file beside it
        base = sqlite3.connect(address + options, uri=True, timeout=30, isolation_level=None)
        try:
            base.execute("SELECT name FROM sqlite_master").fetchone()  # runs no view
        except sqlite3.OperationalError:
            base.close()
            if options:
                raise
        else:
            return base
    raise AssertionError("unreachable: one of the two returns or raises")


def _may_live(owner: str) -> bool:
    """Return False only if the owner is a process of this machine that is certainly gone."""
    found = _OWNER.fullmatch(owner)
    if found is None or found["host"] != socket.gethostname():
        return True
    try:
        lives: bool = psutil.pid_exists(int(found["process"]))
        return lives
    except OverflowError:  # no system counts that far
        return False
