"""Worker processes on this machine; a process that dies takes only its own group with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading

from rksp.grid.engines.base import EVALUATOR, End, Job
from rksp.grid.group import CellGroup, Event
from rksp.ground.model import definite
from rksp.ground.processes import safe_path


class LocalEngine:
    """A pool of processes that live on between groups, so that each imports torch once.

    Args:
        workers: The largest number of processes.
        evaluator: The function that they run, as `package.module:function`.
    """

    def __init__(self, workers: int, *, evaluator: str = EVALUATOR) -> None:
        self.slots = workers
        self._evaluator = evaluator
        self._workers: list[_Worker] = []

    def submit(self, group: CellGroup) -> Job:
        """Give a group to an idle process, or to a new one."""
        idle = (worker for worker in self._workers if worker.is_over)
        worker = next((worker for worker in idle if worker.process.poll() is None), None)
        if worker is None:
            worker = _Worker(self._evaluator)
            self._workers.append(worker)
        worker.send(group)
        return worker

    def close(self) -> None:
        """Stop the processes."""
        for worker in self._workers:
            worker.close()


class _Worker(Job):
    def __init__(self, evaluator: str) -> None:
        super().__init__()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open while the process lives
        self.process = subprocess.Popen(
            # -P: a file of the working folder must not be imported in place of a package.
            [sys.executable, "-P", "-m", "rksp.grid.engines.child", str(os.getpid()), evaluator],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={"OMP_NUM_THREADS": "1"} | os.environ | safe_path(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in definite(self.process.stdout):
            self.arrived.put(Event.model_validate_json(line))

    def send(self, group: CellGroup) -> None:
        """Write a group to the process."""
        self.is_over = False
        with contextlib.suppress(BrokenPipeError):  # it died, which `poll` will notice
            definite(self.process.stdin).write(group.model_dump_json() + "\n")
            definite(self.process.stdin).flush()

    def _ended(self) -> End | None:
        code = self.process.poll()
        if code is None:
            return None
        self._reader.join(timeout=5)
        return _cause(code, self._last_words())

    def _last_words(self) -> str:
        self.errors.seek(0, os.SEEK_END)
        size = self.errors.tell()
        self.errors.seek(max(0, size - 2000))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def stop(self) -> None:
        """Kill the process."""
        self.process.kill()

    def close(self) -> None:
        """Kill the process and close its streams."""
        self.process.kill()
        self.process.wait()
        self._reader.join(timeout=5)
        with contextlib.suppress(BrokenPipeError):  # what it never read is still in the buffer
            definite(self.process.stdin).close()
        definite(self.process.stdout).close()
        self.errors.close()


def _cause(code: int, words: str) -> End:
    if code >= 0:
        return End(failure="error", message=f"the worker left with code {code}: {words}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return End(failure="killed", message=f"the worker was ended by {name}{hint}")
