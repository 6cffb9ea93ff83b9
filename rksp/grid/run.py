"""Work through a grid: fill the store, drive an engine, return the ranked results."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rksp.documents.grid import Record
from rksp.documents.terms import DEFAULT_BAR
from rksp.grid import table
from rksp.grid.axes import check_names
from rksp.grid.cell import init_keys, model_name
from rksp.grid.engines.base import End, Engine, Job
from rksp.grid.engines.local import LocalEngine
from rksp.grid.group import CellGroup, Event, Options
from rksp.grid.plan import GridPlan
from rksp.grid.store import GridStore, Row
from rksp.ground.allocator import collector_paused
from rksp.ground.errors import ArtifactError, Incomplete
from rksp.ground.factory import is_factory
from rksp.ground.files import check_writable

LEASE = 60.0  # seconds; renewed three times as often
_PAUSE = 0.02
# Called with what happened, and with the numbers of cells that are over and of all cells.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True, kw_only=True)
class _Running:
    group: CellGroup
    job: Job
    open: dict[str, None]
    started: bool = False
    profiled: bool = False
    heard: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Teller:
    """Tells of events, with counts that are read from the store at most once a second.

    A failure is told once, however many cells it stops; their number is told at the end.
    """

    store: GridStore
    progress: Progress
    counted: float = float("-inf")
    over: int = 0
    total: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def tell_failure(self, name: str, message: str, cells: int) -> None:
        """Report a failure of this many cells, with its words the first time."""
        is_known = message in self.failures
        self.failures[message] += cells
        self.tell("" if is_known else f"{name}: {message}")

    def tell_repeated(self) -> None:
        """Report each failure that stopped several cells, with their number."""
        for message, count in self.failures.items():
            if count > 1:
                self.tell(f"{count} cells failed: {message}")

    def tell(self, what: str = "") -> None:
        """Report an event; without words, as for a cell that ended well, at most once a second."""
        now = time.monotonic()
        if now - self.counted >= 1.0:
            counts = self.store.counts()
            self.over, self.total = counts["done"] + counts["failed"], sum(counts.values())
            self.counted = now
        elif not what:
            return
        self.progress(what or f"{self.over} of {self.total} cells", self.over, self.total)


def drive(
    store: GridStore,
    engine: Engine,
    *,
    timeout: float = 1800.0,
    lease: float = LEASE,
    progress: Progress = lambda line, done, total: None,
    typed: Collection[str] = (),
    options: Options | None = None,
) -> None:
    """Work until no cell is open, and wait for cells that another coordinator holds.

    If a worker dies before the profile is made, all cells of the group share the blame, since they
    share the profile. Later the first cell without a result takes it, because cells are judged in
    order; the others go back untried.

    Args:
        store: The grid's cells.
        engine: Where groups are worked on.
        timeout: Seconds without an event after which a worker that has begun is stopped.
        lease: Seconds for which a claim holds unless renewed.
        progress: Called for every profile, result and failure.
        typed: Targets that may be factories. A store is a file, so no other target of it runs code.
        options: Options that replace the store's, which could let code run or be fetched.
    """
    running: list[_Running] = []
    teller = _Teller(store, progress)
    renewed = time.monotonic()
    try:
        while True:
            while len(running) < engine.slots:
                group = store.claim(lease, options)
                if group is None:
                    break
                keys = [cell.key for cell in group.cells]
                if is_factory(group.target) and group.target not in typed:
                    store.fail(keys, "invalid", f"the factory {group.target} was not typed.")
                    continue
                running.append(
                    _Running(group=group, job=engine.submit(group), open=dict.fromkeys(keys))
                )
            if not running and not any(store.counts()[state] for state in ("todo", "running")):
                teller.tell_repeated()
                return
            if time.monotonic() - renewed > lease / 3:
                store.renew(lease)
                renewed = time.monotonic()
            heard = [_listen(store, work, timeout, teller) for work in running]
            running = [work for work, is_over in zip(running, heard, strict=True) if not is_over]
            time.sleep(_PAUSE)
    finally:
        for work in running:
            work.job.stop()
        engine.close()
        store.release()


def _listen(store: GridStore, work: _Running, timeout: float, teller: _Teller) -> bool:
    events, end = work.job.poll()
    with store.together() if events else nullcontext(), collector_paused():
        for event in events:
            work.heard = time.monotonic()
            _apply(store, work, event, teller)
    if end is None and work.started and time.monotonic() - work.heard > timeout:
        work.job.stop()
        end = End(failure="timeout", message=f"the worker did not answer for {timeout:g} s")
    if end is None:
        return False
    first = 1 if work.profiled else len(work.open)
    guilty, others = list(work.open)[:first], list(work.open)[first:]
    store.fail(guilty, end.failure or "killed", end.message or "the worker ended early")
    store.release(others)
    return True


def _apply(store: GridStore, work: _Running, event: Event, teller: _Teller) -> None:
    work.started = True  # the time before this does not count towards the timeout
    if event.kind == "started":
        return
    name = model_name(work.group.target, work.group.overrides)
    if event.kind == "profile":
        work.profiled = True
        store.profiled(work.group.cells[0].key, event.seconds)
        teller.tell(f"{name} seed {work.group.seed}: profiled")
        return
    keys = list(work.open) if event.cell is None else [event.cell]
    if event.result is not None:
        store.finish(keys[0], event.result)
        teller.tell()
    else:
        store.fail(keys, event.failure, event.message)
        teller.tell_failure(name, event.message, len(keys))
    for key in keys:
        work.open.pop(key, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridResult:
    """The contents of a store.

    Attributes:
        rows: Every cell, in the order of the grid.
        profiles: Seconds of every profile that was made.
        made_by: Versions of rksp, its classifier, torch and transformers.
        assumed: What nobody decided about the recipes, in words by field.
    """

    rows: tuple[Row, ...]
    profiles: tuple[float, ...]
    made_by: Mapping[str, str]
    assumed: Mapping[str, str] = field(default_factory=dict)

    def records(self, bar: float = DEFAULT_BAR) -> list[Record]:
        """Return one flat record for each cell, ranked; from `bar` on, P(failed) means `risk`."""
        return table.records(self.rows, bar)

    def settings(self, records: Sequence[Record]) -> list[Mapping[str, object]]:
        """Return what the grid set in the cells of these records, by the user's names."""
        by_position = {row.position: row.labels for row in self.rows}
        return [by_position[record.position] for record in records]


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
        plan: From `rksp.grid.plan.read_plan` or `read_plan`.
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
    # Half the cores: more threads than free cores cost tenfold.
    engine = engine or LocalEngine(max(1, min(groups, (os.cpu_count() or 2) // 2)))
    check_writable(path)
    for note in check_names(plan.cells, allow_hub=options.allow_hub):
        progress(note, 0, len(plan.cells))
    with _said(path), GridStore(path) as store:
        with collector_paused():
            known = store.fill(plan.cells, options, plan.assumed)
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
    try:
        yield
    except sqlite3.DatabaseError as error:
        # What is full, locked or read-only has a code; text that is not UTF-8 has none.
        if isinstance(error, sqlite3.OperationalError) and hasattr(error, "sqlite_errorcode"):
            raise Incomplete(
                f"{path} cannot be written or read ({error}); finished cells stay; run "
                "the same grid again to resume."
            ) from error
        raise ArtifactError(f"{path} is damaged ({error}).") from error


def _result(store: GridStore) -> GridResult:
    return GridResult(
        rows=tuple(store.rows()),
        profiles=tuple(store.profiles()),
        made_by=store.made_by(),
        assumed={name: str(words) for name, words in store.assumed().items()},
    )
