"""Ways to run a grid and to kill its processes, for tests of grids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rksp.grid.cell import evaluate_group
from rksp.grid.group import CellAnswer, Options
from rksp.grid.plan import GridPlan
from rksp.grid.store import GridStore

PATIENCE = 300.0  # seconds; a busy machine is no failure


def run_here(store: GridStore) -> None:
    """Work through a store in this process, without an engine."""
    while task := store.claim(600.0):
        for event in evaluate_group(task):
            if event.kind == "profile":
                store.profiled(task.cells[0].key, event.seconds)
            elif event.kind == "result":
                assert store.finish(event.cell, event.result)
            else:
                keys = [event.cell] if event.cell else [cell.key for cell in task.cells]
                store.fail(keys, event.failure, event.message)


def fill_done(
    path: Path,
    plan: GridPlan,
    answer: Callable[[dict[str, object]], CellAnswer | dict[str, object] | str],
) -> None:
    """Fill a store with a plan and answers by recipe; a text is the message of a failure."""
    with GridStore(path) as store:
        store.fill(plan.cells, Options(), plan.assumed)
        while task := store.claim(60.0):
            for cell in task.cells:
                found = answer(json.loads(cell.recipe))
                if isinstance(found, str):
                    store.fail([cell.key], "invalid", found)
                elif isinstance(found, CellAnswer):
                    assert store.finish(cell.key, found)
                else:
                    assert store.finish(cell.key, CellAnswer(**_ANSWER | found))


_ANSWER = {
    "verdict": "ok", "reasons": [], "probability_failed": 0.1, "probability_failed_low": 0.05,
    "probability_failed_high": 0.2, "start_here": 1e-3, "likely_edge": 1e-2,
    "do_not_exceed": 5e-3, "expected_excess": 0.1, "findings": [],
}  # fmt: skip
_COORDINATOR = """
import sys
from pathlib import Path
from rksp.grid.run import drive
from rksp.grid.engines.local import LocalEngine
from rksp.grid.store import GridStore
with GridStore(Path(sys.argv[1])) as store:
    drive(store, LocalEngine(int(sys.argv[3]), evaluator=sys.argv[2]))
"""


def coordinator(path: Path, evaluator: str, workers: int = 2) -> subprocess.Popen:
    """Start a process that works through a store."""
    command = [sys.executable, "-c", _COORDINATOR, str(path), evaluator, str(workers)]
    return subprocess.Popen(command)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listing.stdout.split()]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds; test it every 20 ms."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def kill_a_worker_then_the_coordinator(
    path: Path, evaluator: str, *, first: int, second: int
) -> list[int]:
    """Kill a worker once `first` cells are done, and its coordinator once `second` are.

    Returns:
        The workers that the coordinator leaves behind.
    """
    with GridStore(path, owner="reader") as store:
        process = coordinator(path, evaluator)
        wait_until(lambda: store.counts()["done"] >= first)
        workers = children(process.pid)
        assert workers
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: store.counts()["done"] >= second)
        orphans = children(process.pid)
        process.kill()
        process.wait()
    return orphans
