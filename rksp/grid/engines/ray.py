"""Many machines through Ray: a group is one task that streams its events.

Ray does not retry tasks here. The coordinator knows which cells are done and gives only the rest
to another node.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.grid.cell import EVALUATOR, load_evaluator
from rksp.grid.engines.base import CellGroup, End, Event, Job
from rksp.ground.errors import InputError
from rksp.ground.processes import safe_path

_ADDRESS = re.compile(r"(ray://)?(?P<host>[^:/]+):(?P<port>\d{1,5})")
_PATIENCE = 10.0  # seconds


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
        socket.create_connection((match["host"], int(match["port"])), timeout=_PATIENCE).close()


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
