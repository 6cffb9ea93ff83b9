"""Many machines, through Ray or Slurm: a group is one task, or one job.

Ray streams the events of a task and does not retry it: the coordinator knows which cells are done
and gives only the rest to another node. A job of Slurm, through submitit, writes its events into a
shared folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rksp.grid.engines.base import EVALUATOR, End, Job, work
from rksp.grid.group import CellGroup, Event
from rksp.grid.store import made_by
from rksp.ground.errors import InputError
from rksp.ground.files import check_link
from rksp.ground.processes import safe_path

_ADDRESS = re.compile(r"(ray://)?(?P<host>[^:/]+):(?P<port>\d{1,5})")
_KNOCK = 10.0  # seconds for a connection
_PATIENCE = 30.0  # seconds between questions to the queue about a job that is silent
_DEFAULTS = {"cpus_per_task": 1, "timeout_min": 240}  # submitit's own limit is 5 minutes
_GRACE = 10.0  # seconds for a shared folder to show the last lines of a finished job


class RayEngine:
    """Runs groups as Ray tasks.

    Args:
        workers: Groups at once; by default one for every processor of the cluster.
        address: The address of a cluster; by default the one that Ray finds, or a new one on this
            machine.
        evaluator: The function that tasks run, as `package.module:function`; every node must be
            able to import it.

    Raises:
        InputError: Ray is not installed or its cluster cannot be reached.
    """

    def __init__(
        self, workers: int | None = None, *, address: str | None = None, evaluator: str = EVALUATOR
    ) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.update(safe_path())  # which workers on this machine inherit
        try:
            import ray
        except ImportError as error:
            raise InputError("--engine ray needs Ray; pip install 'rksp[ray]'.") from error
        self._ray: Any = ray
        self._opened = contextlib.ExitStack()
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                # Ray itself would retry for minutes.
                if (match := _ADDRESS.fullmatch(address or "")) is not None:
                    place = match["host"], int(match["port"])
                    socket.create_connection(place, timeout=_KNOCK).close()
                # Ray puts the folder in which it starts first on the path of its workers.
                empty = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                with contextlib.chdir(self._opened.enter_context(empty)):
                    ray.init(address=address, log_to_driver=False, include_dashboard=False)
            except (OSError, OverflowError) as error:
                self._opened.close()
                raise InputError(f"There is no Ray cluster at {address}: {error}.") from error
        self.slots = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._evaluator = evaluator
        task = ray.remote(num_returns="streaming", num_cpus=1, max_retries=0)(_work_in)
        self._task: Any = task.options(scheduling_strategy="SPREAD")

    def submit(self, group: CellGroup) -> Job:
        """Send a group to the cluster."""
        return _RayJob(self._ray, self._task.remote(str(Path.cwd()), self._evaluator, group))

    def close(self) -> None:
        """Leave the cluster; shut it down only if this engine started it."""
        if self._is_ours:
            self._ray.shutdown()
        self._opened.close()


def _work_in(folder: str, evaluator: str, group: CellGroup) -> Iterator[Event]:
    """Evaluate a group; relative paths start from `folder` if the node has it."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    yield from work(evaluator, group)


class _RayJob(Job):
    """One group on the cluster, with a thread that waits for its events."""

    def __init__(self, ray: Any, stream: Any) -> None:
        super().__init__()
        self._ray, self._stream = ray, stream
        self._end: End | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        errors = self._ray.exceptions
        try:
            for reference in self._stream:
                self.arrived.put(self._ray.get(reference))
        except errors.RayTaskError as error:
            self._end = End(failure="error", message=str(error.cause or error).splitlines()[0])
        except errors.RayError as error:  # the worker, its node or its object was lost
            name = type(error).__name__
            self._end = End(failure="killed", message=f"the worker was lost ({name})")

    def _ended(self) -> End | None:
        return self._end

    def stop(self) -> None:
        """Cancel the task and its process."""
        self._ray.cancel(self._stream, force=True)


class SlurmEngine:
    """Runs groups as Slurm jobs.

    Args:
        folder: A folder on a file system that every node sees; jobs write their events and logs
            there. The store itself stays with the coordinator.
        workers: The number of jobs in the queue at once.
        cluster: `slurm`, or submitit's `local` and `debug` executors.
        parameters: For submitit (`slurm_partition`, `timeout_min`, `mem_gb`, …).
        evaluator: The function that jobs run, as `package.module:function`.

    Raises:
        InputError: submitit is not installed, or Slurm is not available.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        *,
        cluster: str = "slurm",
        parameters: Mapping[str, object] | None = None,
        evaluator: str = EVALUATOR,
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError("--engine slurm needs submitit; pip install 'rksp[slurm]'.") from error
        os.environ.update(safe_path())  # jobs inherit it
        check_link(folder / "logs")
        try:
            self._executor = submitit.AutoExecutor(folder=folder / "logs", cluster=cluster)
        except RuntimeError as error:
            raise InputError(f"Slurm is not available: {error}.") from error
        try:
            self._executor.update_parameters(**(_DEFAULTS | dict(parameters or {})))
        except (NameError, TypeError) as error:
            raise InputError(f"submitit refuses a parameter: {error}.") from error
        maker = made_by()  # keeps the answers of another version apart
        self.folder = folder / f"{maker['rksp']}-{maker['classifier']}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._is_remote = cluster == "slurm"
        self._patience, self._grace = (_PATIENCE, _GRACE) if self._is_remote else (0.2, 0.0)
        self.slots = workers
        self._evaluator = evaluator
        self._jobs: list[_SlurmJob] = []

    def submit(self, group: CellGroup) -> Job:
        """Submit a group, without the cells that jobs of an earlier coordinator have answered."""
        events = (e for file in sorted(self.folder.glob("events-*.jsonl")) for e in _read(file)[0])
        wanted = {cell.key for cell in group.cells}
        known = {e.cell: e for e in events if e.kind == "result" and e.cell in wanted}
        rest = tuple(cell for cell in group.cells if cell.key not in known)
        if not rest:
            return _Answered(known.values())
        file = self.folder / f"events-{rest[0].key}-{secrets.token_hex(4)}.jsonl"
        left = group.model_copy(update={"cells": rest})
        submitted = self._executor.submit(write_events, self._evaluator, left, str(file))
        job = _SlurmJob(submitted, file, known.values(), self._patience, self._grace)
        self._jobs.append(job)
        return job

    def close(self) -> None:
        """Cancel the jobs still in the queue, and wait for processes of this machine."""
        for job in self._jobs:
            if not job.is_over:
                job.stop()
        if not self._is_remote:
            for job in self._jobs:
                job.join()


def write_events(evaluator: str, group: CellGroup, path: str) -> None:
    """Run a job: append one line of JSON for each event."""
    with Path(path).open("a", encoding="utf-8") as file:
        for event in work(evaluator, group):
            print(event.line(), file=file, flush=True)


def _read(file: Path, start: int = 0) -> tuple[list[Event], int]:
    if not file.is_file():
        return [], start
    with file.open("rb") as content:
        content.seek(start)
        text = content.read()
    whole = text[: text.rfind(b"\n") + 1]
    events = [Event.model_validate_json(line) for line in whole.splitlines()]
    return events, start + len(whole)


class _Answered(Job):
    def _ended(self) -> End | None:
        return End()

    def stop(self) -> None:
        """Do nothing: nothing runs."""


class _SlurmJob(Job):
    """One group in the queue or at work; results that are known it need not give.

    The queue is asked every `patience` seconds, and events may be `grace` seconds late.
    """

    def __init__(
        self, job: Any, file: Path, known: Iterable[Event], patience: float, grace: float
    ) -> None:
        super().__init__(known)
        self._job, self._file, self._position = job, file, 0
        self._patience, self._grace = patience, grace
        self._next_look = time.monotonic() + patience
        self._over_since: float | None = None

    def _ended(self) -> End | None:
        now = time.monotonic()
        if self._over_since is None:
            is_due = now > self._next_look
            if is_due:
                self._next_look = now + self._patience
            if self._job.done(force_check=is_due):
                self._over_since = now
        events, self._position = _read(self._file, self._position)
        for event in events:
            self.arrived.put(event)
        if self._over_since is None or now - self._over_since < self._grace:
            return None
        return End(failure="killed", message=f"the job ended early: {self._last_words()}")

    def _last_words(self) -> str:
        """Return the last line of its stderr; `exception()` would wait 15 s for a killed job."""
        lines = (self._job.stderr() or "").strip().splitlines()
        return lines[-1] if lines else f"{self._job.state.lower()}, without a message"

    def stop(self) -> None:
        """Cancel the job."""
        self._job.cancel()

    def join(self) -> None:
        """Wait until the queue says that the job is over."""
        while not self._job.done(force_check=True):
            time.sleep(0.02)
