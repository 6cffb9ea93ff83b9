"""Many machines, through Ray or Slurm: a group is one task, or one job.

Ray streams the events of a task and does not retry it: the coordinator knows which cells are done
and gives only the rest to another node. A job of Slurm, through submitit, writes its events into a
shared folder.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rksp.grid.cell import EVALUATOR, load_evaluator
from rksp.grid.engines.base import CellGroup, End, Event, Job
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
                _knock(address)
                # Ray puts the folder in which it starts first on the path of its workers.
                empty = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                with contextlib.chdir(self._opened.enter_context(empty)):
                    ray.init(address=address, log_to_driver=False, include_dashboard=False)
            except (OSError, OverflowError) as error:
                self._opened.close()
                raise InputError(f"There is no Ray cluster at {address}: {error}.") from error
        self.slots = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._evaluator = evaluator
        remote = ray.remote(num_returns="streaming", num_cpus=1, max_retries=0)
        self._work = remote(_work)

    def start(self, group: CellGroup) -> RayJob:
        """Send a group to the cluster."""
        scattered = self._work.options(scheduling_strategy="SPREAD")
        return RayJob(self._ray, scattered.remote(self._evaluator, group, str(Path.cwd())))

    def close(self) -> None:
        """Leave the cluster; shut it down only if this engine started it."""
        if self._is_ours:
            self._ray.shutdown()
        self._opened.close()


def _knock(address: str | None) -> None:
    """Open and close one connection to the address, because Ray itself would retry for minutes."""
    match = _ADDRESS.fullmatch(address or "")
    if match is not None:
        socket.create_connection((match["host"], int(match["port"])), timeout=_KNOCK).close()


def _work(evaluator: str, group: CellGroup, folder: str) -> Iterator[Event]:
    """Evaluate a group; relative paths start from `folder` if the node has it."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    yield {"kind": "started"}
    yield from load_evaluator(evaluator)(group)


class RayJob(Job):
    """One group on the cluster, with a thread that waits for its events."""

    def __init__(self, ray: Any, stream: Any) -> None:
        super().__init__()
        self._ray, self._stream = ray, stream
        self._arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._end: End | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        errors = self._ray.exceptions
        try:
            for reference in self._stream:
                self._arrived.put(self._ray.get(reference))
        except errors.RayTaskError as error:
            self._end = End(failure="error", message=str(error.cause or error).splitlines()[0])
        except errors.RayError as error:  # the worker, its node or its object was lost
            name = type(error).__name__
            self._end = End(failure="killed", message=f"the worker was lost ({name})")
        else:
            self._end = End()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.append(self._arrived.get_nowait())

    def _cause(self) -> End | None:
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
        self._jobs: list[SlurmJob] = []

    def start(self, group: CellGroup) -> Job:
        """Submit a group, without the cells that jobs of an earlier coordinator have answered."""
        known = self._left_behind(group)
        rest = [cell for cell in group["cells"] if cell[0] not in known]
        if not rest:
            return Job(known.values())
        file = self.folder / f"events-{rest[0][0]}-{secrets.token_hex(4)}.jsonl"
        left = {**group, "cells": rest}
        job = SlurmJob(
            self._executor.submit(work, self._evaluator, left, str(file)),
            file,
            patience=self._patience,
            grace=self._grace,
            known=list(known.values()),
        )
        self._jobs.append(job)
        return job

    def _left_behind(self, group: CellGroup) -> dict[str, Event]:
        """Return the results for cells of this group in the shared folder, by cell."""
        wanted, found = {key for key, _ in group["cells"]}, {}
        for file in sorted(self.folder.glob("events-*.jsonl")):
            for event in _read(file, 0)[0]:
                if event and event["kind"] == "result" and event["cell"] in wanted:
                    found[event["cell"]] = event
        return found

    def close(self) -> None:
        """Cancel the jobs still in the queue, and wait for processes of this machine."""
        for job in self._jobs:
            if job.end() is None:
                job.stop()
        if not self._is_remote:
            for job in self._jobs:
                job.join()


def work(evaluator: str, group: CellGroup, path: str) -> None:
    """Run a job: append one line of JSON for each event, and null at the end."""
    with Path(path).open("a", encoding="utf-8") as file:
        events = load_evaluator(evaluator)(group)
        for event in itertools.chain(({"kind": "started"},), events, (None,)):
            print(json.dumps(event), file=file, flush=True)


def _read(file: Path, start: int) -> tuple[list[Event | None], int]:
    """Return the whole lines from a position on, and the position after them."""
    if not file.is_file():
        return [], start
    with file.open("rb") as content:
        content.seek(start)
        text = content.read()
    whole = text[: text.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], start + len(whole)


class SlurmJob(Job):
    """One group in the queue or at work.

    Args:
        job: The job from submitit.
        file: The file to which it writes its events.
        patience: Seconds between questions to the queue.
        grace: Seconds to wait for events of a job that the queue says is over.
        known: Results that it need not give.
    """

    def __init__(
        self, job: Any, file: Path, *, patience: float, grace: float, known: list[Event]
    ) -> None:
        super().__init__(known)
        self._job, self._file = job, file
        self._patience, self._grace = patience, grace
        self._position = 0
        self._next_look = time.monotonic() + patience
        self._over_since: float | None = None

    def _drain(self) -> None:
        """Read the whole lines written since the last time."""
        events, self._position = _read(self._file, self._position)
        self._is_done |= None in events
        self._events += [event for event in events if event is not None]

    def _cause(self) -> End | None:
        if self._over_since is None:
            if not self._asked_the_queue():
                return None
            self._over_since = time.monotonic()
        if time.monotonic() - self._over_since < self._grace:
            return None
        return End(failure="killed", message=f"the job ended early: {self._last_words()}")

    def _asked_the_queue(self) -> bool:
        """Return whether the queue says that the job is over; ask at most once per `patience`."""
        is_due = time.monotonic() > self._next_look
        if is_due:
            self._next_look = time.monotonic() + self._patience
        is_over: bool = self._job.done(force_check=is_due)
        return is_over

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
