"""The coordinator: claims groups, gives them to an engine, and stores the results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass, field

from rksp.grid.cell import Options, model_name
from rksp.grid.engines.base import End, Engine, Job
from rksp.grid.events import CellGroup, Event, Failure
from rksp.grid.store import GridStore
from rksp.ground.collector import collector_paused
from rksp.ground.factory import is_factory

LEASE = 60.0  # seconds; renewed three times as often
_PAUSE = 0.02
# Called with what happened, and with the numbers of cells that are over and of all cells.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True, kw_only=True)
class _Running:
    """A group at work, its open cells, and the time of its last event."""

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
        """Tell of a failure of this many cells."""
        is_known = message in self.failures
        self.failures[message] += cells
        self.tell("" if is_known else f"{name}: {message}")

    def tell_repeated(self) -> None:
        """Tell how many cells each failure stopped that stopped several."""
        for message, count in self.failures.items():
            if count > 1:
                self.tell(f"{count} cells failed: {message}")

    def tell(self, what: str = "") -> None:
        """Tell of an event; a cell that ended well has no words and is told once a second."""
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
                group = store.claim(lease)
                if group is None:
                    break
                if options is not None:
                    group["options"] = options.model_dump(mode="json")
                keys = [key for key, _ in group["cells"]]
                if is_factory(group["target"]) and group["target"] not in typed:
                    store.fail(keys, "invalid", f"the factory {group['target']} was not typed.")
                    continue
                running.append(
                    _Running(group=group, job=engine.start(group), open=dict.fromkeys(keys))
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
    """Store a group's events; return whether the group is over."""
    end = work.job.end()  # before the events, so that the last ones are not missed
    events = work.job.poll()
    with store.together() if events else nullcontext(), collector_paused():
        for event in events:
            work.heard = time.monotonic()
            _apply(store, work, event, teller)
    if end is None and work.started and time.monotonic() - work.heard > timeout:
        work.job.stop()
        end = End(failure="timeout", message=f"the worker did not answer for {timeout:g} s")
    if end is None:
        return False
    if work.open:
        _blame(store, work, end.failure or "killed", end.message or "the worker ended early")
    return True


def _apply(store: GridStore, work: _Running, event: Event, teller: _Teller) -> None:
    work.started = True  # the time before this does not count towards the timeout
    if event["kind"] == "started":
        return
    if event["kind"] == "profile":
        work.profiled = True
        store.profiled(work.group["cells"][0][0], event["seconds"])
        name = model_name(work.group["target"], work.group["overrides"])
        teller.tell(f"{name} seed {work.group['seed']}: profiled")
        return
    keys = [event["cell"]] if "cell" in event else list(work.open)
    if event["kind"] == "result":
        store.finish(event["cell"], event["result"])
        teller.tell()
    else:
        store.fail(keys, event["failure"], event["message"])
        name = model_name(work.group["target"], work.group["overrides"])
        teller.tell_failure(name, event["message"], len(keys))
    for key in keys:
        work.open.pop(key, None)


def _blame(store: GridStore, work: _Running, failure: Failure, message: str) -> None:
    guilty = list(work.open)[:1] if work.profiled else list(work.open)
    store.fail(guilty, failure, message)
    store.release(key for key in work.open if key not in guilty)
    work.open = {}
