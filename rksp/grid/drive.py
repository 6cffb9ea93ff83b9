"""The coordinator: claims groups, gives them to an engine, and writes down what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rksp.factory import is_factory
from rksp.grid.cell import Options, model_name
from rksp.grid.engines.base import End, Engine, Job
from rksp.grid.events import CellGroup, Event, Failure
from rksp.grid.store import GridStore

LEASE = 60.0  # seconds; renewed three times as often
_PAUSE = 0.02
Progress = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class _Running:
    """A group at work: what of it is still open, and when it last said something."""

    group: CellGroup
    job: Job
    open: list[str]
    started: bool = False
    profiled: bool = False
    heard: float = field(default_factory=time.monotonic)


def drive(
    store: GridStore,
    engine: Engine,
    *,
    timeout: float = 1800.0,
    lease: float = LEASE,
    progress: Progress = lambda line: None,
    typed: Collection[str] = (),
    options: Options | None = None,
) -> None:
    """Works until no cell is open; cells that another coordinator holds are waited for.

    Whom a dead worker is blamed on: before the profile was made, all cells of the group, which
    share it; afterwards the first cell without a result, because cells are judged in order. The
    others go back untried.

    Args:
        timeout: Seconds without an event after which a worker that has begun is ended.
        lease: Seconds for which a claim is good unless renewed.
        typed: Targets that may be factories. A store is a file: what it holds besides runs no code.
        options: In place of the store's, which could let code run or be fetched.
    """
    running: list[_Running] = []
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
                running.append(_Running(group=group, job=engine.start(group), open=keys))
            if not running and not any(store.counts()[state] for state in ("todo", "running")):
                return
            if time.monotonic() - renewed > lease / 3:
                store.renew(lease)
                renewed = time.monotonic()
            heard = [_listen(store, work, timeout, progress) for work in running]
            running = [work for work, is_over in zip(running, heard, strict=True) if not is_over]
            time.sleep(_PAUSE)
    finally:
        for work in running:
            work.job.stop()
        engine.close()
        store.release()


def _listen(store: GridStore, work: _Running, timeout: float, progress: Progress) -> bool:
    """Writes down what a group said; says whether it is over."""
    end = work.job.end()  # before the events: what came last must not be missed
    for event in work.job.poll():
        work.heard = time.monotonic()
        _apply(store, work, event, progress)
    if end is None and work.started and time.monotonic() - work.heard > timeout:
        work.job.stop()
        end = End(failure="timeout", message=f"no answer for {timeout:g} s")
    if end is None:
        return False
    if work.open:
        _blame(store, work, end.failure or "killed", end.message or "the worker ended early")
    return True


def _apply(store: GridStore, work: _Running, event: Event, progress: Progress) -> None:
    name = model_name(work.group["target"], work.group["overrides"])
    work.started = True  # a group may wait for its turn as long as it must
    if event["kind"] == "started":
        return
    if event["kind"] == "profile":
        work.profiled = True
        store.profiled(work.group["cells"][0][0], event["seconds"])
        progress(f"{name} seed {work.group['seed']}: profiled")
        return
    keys = [event["cell"]] if "cell" in event else list(work.open)
    if event["kind"] == "result":
        store.finish(event["cell"], event["result"])
    else:
        store.fail(keys, event["failure"], event["message"])
        progress(f"{name}: {event['message']}")
    work.open = [key for key in work.open if key not in keys]


def _blame(store: GridStore, work: _Running, failure: Failure, message: str) -> None:
    guilty = work.open[:1] if work.profiled else work.open
    store.fail(guilty, failure, message)
    store.release(key for key in work.open if key not in guilty)
    work.open = []
