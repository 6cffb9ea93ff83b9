"""Threads whose processor time is known."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock


class CountingPool(ThreadPoolExecutor):
    """A pool that adds up what its jobs cost.

    Attributes:
        seconds: Processor time of all jobs that have ended.
    """

    def __init__(self, workers: int, name: str) -> None:
        super().__init__(workers, thread_name_prefix=name)
        self.seconds = 0.0
        self._lock = Lock()

    def submit(self, job: Callable, /, *args: object, **kwargs: object) -> Future:
        """Begin a job; see `concurrent.futures.Executor.submit`."""
        return super().submit(self._counted, job, args, kwargs)

    def _counted(self, job: Callable, args: tuple, kwargs: dict) -> object:
        start = time.thread_time()
        try:
            return job(*args, **kwargs)
        finally:
            with self._lock:
                self.seconds += time.thread_time() - start


@dataclass(frozen=True, slots=True)
class PassCost:
    """What one streamed pass took.

    Attributes:
        seconds: Of the clock.
        computing: Processor seconds of the model itself.
        loading: Processor seconds of drawing or reading its weights.
        sequences: Number of sequences that it ran.
    """

    seconds: float
    computing: float
    loading: float
    sequences: int
