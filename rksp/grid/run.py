"""Run a whole grid in one call: fill the store, work through it, return the ranked results."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rksp.grid import table
from rksp.grid.cell import Options, init_keys
from rksp.grid.drive import Progress, drive
from rksp.grid.engines.base import Engine
from rksp.grid.engines.local import LocalEngine
from rksp.grid.names import check_names
from rksp.grid.plan import GridPlan
from rksp.grid.store import GridStore, Row
from rksp.ground.collector import collector_paused
from rksp.ground.errors import ArtifactError, Incomplete
from rksp.ground.files import check_writable


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """The contents of a store.

    Attributes:
        rows: Every cell, in the order of the grid.
        profiles: Seconds of every profile that was made.
        made_by: Versions of rksp, its classifier, torch and transformers.
        assumed: What nobody decided about the recipes, in words by field.
        sweep: The W&B sweep that the grid was read from; empty for another grid.
    """

    rows: tuple[Row, ...]
    profiles: tuple[float, ...]
    made_by: Mapping[str, str]
    assumed: Mapping[str, str] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)

    def records(self, bar: float = 0.5) -> list[table.Record]:
        """Return one flat record for each cell, ranked; from `bar` on, P(failed) means `risk`."""
        return table.records(self.rows, bar)

    def settings(self, records: Sequence[table.Record]) -> list[Mapping[str, Any]]:
        """Return what the grid set in the cells of these records, by the user's names."""
        by_position = {row.position: row.labels for row in self.rows}
        return [by_position[record["position"]] for record in records]

    def axes(self) -> list[str]:
        """Return the varied names as the user gave them."""
        return table.axes_of(self.rows)


def run_grid(
    plan: GridPlan,
    path: Path,
    *,
    options: Options | None = None,
    engine: Engine | None = None,
    timeout: float = 1800.0,
    retry_failed: bool = False,
    progress: Progress = lambda line, done, total: None,
) -> GridResult:
    """Work through a grid, or through what an earlier call left of it.

    Args:
        plan: From `rksp.grid.plan.read_plan` or `make_plan`.
        path: The store; a call with the same plan and options resumes it.
        options: How cells are measured.
        engine: Where cells run; by default one process for every two cores, at most one a model.
        timeout: Seconds without an event after which a worker is stopped.
        retry_failed: Try cells again that failed for good.
        progress: Called with a line for every profile, result and failure, the number of cells
            that are over, and the number of all cells.

    Raises:
        InputError: The store holds another grid, or no cell can run.
        Incomplete: The store could not be written; finished cells stay.
    """
    options = options or Options()
    groups = len(set(init_keys(plan.cells, options)))
    engine = engine or LocalEngine(_workers(groups))
    check_writable(path)
    for note in check_names(plan.cells, allow_hub=options.allow_hub):
        progress(note, 0, len(plan.cells))
    with _said(path), GridStore(path) as store:
        about = {"assumed": plan.assumed, "sweep": plan.sweep}
        with collector_paused():
            known = store.fill(plan.cells, options, about)
        if known:
            done = store.counts()["done"]
            progress(f"resuming: {done} of {known} cells are done", done, known)
        if retry_failed:
            store.retry_failed()
        drive(store, engine, options=options, timeout=timeout, progress=progress, typed=plan.typed)
        with collector_paused():
            return _result(store)


def read_grid(path: Path) -> GridResult:
    """Return what a store holds now, even while others work on it.

    Raises:
        ArtifactError: The file is not a grid store.
    """
    with _said(path), GridStore(path, read_only=True) as store:
        return _result(store)


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Convert SQLite's errors during the work into errors of rksp."""
    try:
        yield
    except sqlite3.OperationalError as error:  # full, locked, read-only
        raise Incomplete(
            f"{path} cannot be written or read ({error}); finished cells stay; run "
            "the same grid again to resume."
        ) from error
    except sqlite3.DatabaseError as error:
        raise ArtifactError(f"{path} is damaged ({error}).") from error


def _result(store: GridStore) -> GridResult:
    return GridResult(
        rows=tuple(store.rows()),
        profiles=tuple(store.profiles()),
        made_by=store.made_by(),
        assumed={name: str(words) for name, words in store.about("assumed").items()},
        sweep=store.about("sweep"),
    )


def _workers(groups: int) -> int:
    """Return half the number of cores; more threads than free cores cost tenfold."""
    return max(1, min(groups, (os.cpu_count() or 2) // 2))
