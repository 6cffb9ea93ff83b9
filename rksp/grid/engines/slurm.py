"""Slurm through submitit: a group is one job, which writes its events into a shared folder."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path

from rksp.errors import InputError
from rksp.grid.engines.base import End
from rksp.grid.evaluate import EVALUATOR, load_evaluator
from rksp.grid.events import Event, Task

_PATIENCE = 30.0  # seconds between questions to the queue about a job that is silent


class SlurmEngine:
    """Groups as Slurm jobs.

    Args:
        folder: On a file system that every node sees; jobs write their events and logs there.
            The store itself stays with the coordinator.
        workers: Jobs in the queue at once.
        cluster: `slurm`, or submitit's `local` and `debug` executors.
        parameters: For submitit (`slurm_partition`, `timeout_min`, `mem_gb`, …).
        evaluator: What the jobs run, as `package.module:function`.

    Raises:
        InputError: submitit is not installed, or there is no Slurm here.
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
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._executor = submitit.AutoExecutor(folder=folder / "logs", cluster=cluster)
        except RuntimeError as error:
            raise InputError(f"Slurm cannot be used here: {error}.") from error
        self._executor.update_parameters(**{"cpus_per_task": 1, **(parameters or {})})
        self._patience = _PATIENCE if cluster == "slurm" else 0.5
        self.slots = workers
        self._folder = folder
        self._evaluator = evaluator
        self._numbers = itertools.count()
        self._jobs: list[SlurmJob] = []

    def start(self, task: Task) -> SlurmJob:
        """Submits a group."""
        file = self._folder / f"events-{task['cells'][0][0]}-{next(self._numbers)}.jsonl"
        file.unlink(missing_ok=True)
        submitted = self._executor.submit(work, self._evaluator, task, str(file))
        job = SlurmJob(submitted, file, self._patience)
        self._jobs.append(job)
        return job

    def close(self) -> None:
        """Cancels what is still in the queue."""
        for job in self._jobs:
            if job.end() is None:
                job.stop()


def work(evaluator: str, task: Task, path: str) -> None:
    """What a job runs: appends one line of JSON for each event."""
    with Path(path).open("a", encoding="utf-8") as file:
        for event in itertools.chain(({"kind": "started"},), load_evaluator(evaluator)(task)):
            print(json.dumps(event), file=file, flush=True)


class SlurmJob:
    """One group in the queue or at work."""

    def __init__(self, job, file: Path, patience: float) -> None:
        self._job, self._file, self._patience = job, file, patience
        self._read = 0
        self._next_look = time.monotonic() + patience

    def poll(self) -> list[Event]:
        """Whole lines written since the last call."""
        if not self._file.is_file():
            return []
        with self._file.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def end(self) -> End | None:
        """By the word of the queue."""
        is_due = time.monotonic() > self._next_look
        if is_due:
            self._next_look = time.monotonic() + self._patience
        if not self._job.done(force_check=is_due):
            return None
        error = self._job.exception()
        if error is None:
            return End()
        words = str(error).strip().splitlines() or [type(error).__name__]
        return End(failure="killed", message=f"the job failed: {words[-1]}")

    def stop(self) -> None:
        """Cancels the job."""
        self._job.cancel()
