"""Ways to work a grid off, and to be rude to whoever does: for tests of grids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rksp.grid.evaluate import evaluate_group
from rksp.grid.store import GridStore


def run_here(store: GridStore) -> None:
    """Works a store off in this process, without an engine."""
    while task := store.claim(600.0):
        for event in evaluate_group(task):
            if event["kind"] == "profile":
                store.profiled(task["cells"][0][0], event["seconds"])
            elif event["kind"] == "result":
                assert store.finish(event["cell"], event["result"])
            else:
                keys = [event["cell"]] if "cell" in event else [key for key, _ in task["cells"]]
                store.fail(keys, event["failure"], event["message"])


_COORDINATOR = """
import sys
from pathlib import Path
from rksp.grid.drive import drive
from rksp.grid.engines.local import LocalEngine
from rksp.grid.store import GridStore
with GridStore(Path(sys.argv[1])) as store:
    drive(store, LocalEngine(int(sys.argv[3]), evaluator=sys.argv[2]))
"""


def coordinator(path: Path, evaluator: str, workers: int = 2) -> subprocess.Popen:
    """A process that works a store off."""
    command = [sys.executable, "-c", _COORDINATOR, str(path), evaluator, str(workers)]
    return subprocess.Popen(command)


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listing.stdout.split()]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Looks every 20 ms."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def kill_a_worker_then_the_coordinator(
    path: Path, evaluator: str, *, first: int, second: int
) -> list[int]:
    """Starts a coordinator; a worker of it ends by SIGKILL once `first` cells are done, and it
    itself once `second` are. Returns the workers that it leaves behind."""
    with GridStore(path, owner="reader") as store:
        process = coordinator(path, evaluator)
        wait_until(lambda: store.counts()["done"] >= first, seconds=60)
        workers = children(process.pid)
        assert workers
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: store.counts()["done"] >= second, seconds=60)
        orphans = children(process.pid)
        process.kill()
        process.wait()
    return orphans
