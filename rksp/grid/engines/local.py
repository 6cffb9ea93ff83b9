"""Worker processes on this machine; a process that dies takes only its own group with it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading

from rksp.grid.cell import EVALUATOR
from rksp.grid.engines.base import CellGroup, End, Job
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
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []

    def start(self, group: CellGroup) -> LocalJob:
        """Give a group to an idle process, or to a new one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                break
        else:
            worker = _Worker(self._evaluator)
            self._all.append(worker)
        return LocalJob(worker, group, self._idle)

    def close(self) -> None:
        """Stop the processes."""
        for worker in self._all:
            worker.close()


class _Worker:
    def __init__(self, evaluator: str) -> None:
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
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in definite(self.process.stdout):
            self.lines.put(line)

    def send(self, group: CellGroup) -> None:
        """Write a group to the process."""
        with contextlib.suppress(BrokenPipeError):  # it died; the job will notice
            definite(self.process.stdin).write(json.dumps(group) + "\n")
            definite(self.process.stdin).flush()

    def last_words(self) -> str:
        """Return the last line of its stderr."""
        self.errors.seek(0, os.SEEK_END)
        size = self.errors.tell()
        self.errors.seek(max(0, size - 2000))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Kill the process and close its streams."""
        self.process.kill()
        self.process.wait()
        self.reader.join(timeout=5)
        with contextlib.suppress(BrokenPipeError):  # what it never read is still in the buffer
            definite(self.process.stdin).close()
        definite(self.process.stdout).close()
        self.errors.close()


class LocalJob(Job):
    """A group in a worker process."""

    def __init__(self, worker: _Worker, group: CellGroup, idle: list[_Worker]) -> None:
        super().__init__()
        self._worker, self._idle = worker, idle
        worker.send(group)

    def _drain(self) -> None:
        while not self._is_done:
            try:
                event = json.loads(self._worker.lines.get_nowait())
            except queue.Empty:
                return
            if event is None:
                self._is_done = True
                self._idle.append(self._worker)
            else:
                self._events.append(event)

    def _cause(self) -> End | None:
        code = self._worker.process.poll()
        if code is None:
            return None
        self._worker.reader.join(timeout=5)
        return _cause(code, self._worker.last_words())

    def stop(self) -> None:
        """Kill the process."""
        self._worker.process.kill()


def _cause(code: int, words: str) -> End:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
        return End(failure="killed", message=f"the worker was ended by {name}{hint}")
    return End(failure="error", message=f"the worker left with code {code}: {words}")
