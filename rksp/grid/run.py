"""A whole grid in one call: into a store, by an engine, to a ranked table."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rksp.errors import ArtifactError, Incomplete
from rksp.grid import table
from rksp.grid.cell import Options
from rksp.grid.drive import Progress, drive
from rksp.grid.engines.base import Engine
from rksp.grid.engines.local import LocalEngine
from rksp.grid.plan import GridPlan
from rksp.grid.store import GridStore, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """What a store holds.

    Attributes:
        rows: Every cell, in the order of the grid.
        profiles: Seconds of every profile that was made.
        made_by: Versions of rksp, its classifier, torch and transformers.
    """

    rows: tuple[Row, ...]
    profiles: tuple[float, ...]
    made_by: Mapping[str, str]

    def records(self, bar: float = 0.5) -> list[table.Record]:
        """One flat record a cell, ranked; `risk` from P(failed) = `bar` on."""
        return table.records(self.rows, bar)

    def axes(self) -> list[str]:
        """What varies, by the names that the user gave."""
        return table.axes_of(self.rows)


def run_grid(
    plan: GridPlan,
    path: Path,
    *,
    options: Options | None = None,
    engine: Engine | None = None,
    timeout: float = 1800.0,
    retry_failed: bool = False,
    progress: Progress = lambda line: None,
) -> GridResult:
    """Works a grid off, or what an earlier call left of it.

    Args:
        plan: From `rksp.grid.plan.read_plan` or `make_plan`.
        path: The store; the same plan and options resume in it.
        options: How cells are measured.
        engine: Default a process for every two cores, but no more than there are models.
        timeout: Seconds without news after which a worker is ended.
        retry_failed: Open cells again that failed for good.
        progress: Told of every profile and failure.

    Raises:
        InputError: The store holds another grid.
        Incomplete: The store could not be written; what is done stays.
    """
    options = options or Options()
    groups = len({cell.init_key(options) for cell in plan.cells})
    engine = engine or LocalEngine(_workers(groups))
    with _said(path), GridStore(path) as store:
        known = store.fill(plan.cells, options)
        if known:
            progress(f"resumes: {store.counts()['done']} of {known} cells are done")
        if retry_failed:
            store.retry_failed()
        drive(store, engine, options=options, timeout=timeout, progress=progress, typed=plan.typed)
        return _result(store)


def read_grid(path: Path) -> GridResult:
    """What a store holds now, whoever works on it.

    Raises:
        ArtifactError: The file is no store.
    """
    with _said(path), GridStore(path, read_only=True) as store:
        return _result(store)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Turn what SQLite says in the middle of the work into errors of rksp."""
    try:
        yield
    except sqlite3.OperationalError as error:  # full, locked, read-only
        raise Incomplete(
            f"{path} cannot be written or read ({error}); what is done stays, and the same grid "
            "resumes."
        ) from error
    except sqlite3.DatabaseError as error:
        raise ArtifactError(f"{path} is damaged ({error}).") from error


def _result(store: GridStore) -> GridResult:
    return GridResult(
        rows=tuple(store.rows()), profiles=tuple(store.profiles()), made_by=store.made_by()
    )


def _workers(groups: int) -> int:
    """Half of the cores: more threads than free cores cost tenfold."""
    return max(1, min(groups, (os.cpu_count() or 2) // 2))
