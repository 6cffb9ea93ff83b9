"""Forked processes with limits on memory and time, so that one input harms no other."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TypeVar

import psutil

MOST_MEMORY = 4 * 2**30  # bytes that one process may hold besides what it shares
MOST_SECONDS = 62.0  # of the processor, for one input
MOST_WAITING = 400.0  # of the clock, for one input
_FORK = multiprocessing.get_context("fork")
Job = TypeVar("Job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended.

    Attributes:
        result: What it answered; empty if it did not live that long.
        said: Why it did not.
        note: What it was doing then.
        seconds: Of the processor, since that note.
    """

    result: str = ""
    said: str = ""
    note: str = ""
    seconds: float = 0.0


class Child:
    """A forked process that works on one job; the parent sees what it notes."""

    def __init__(self, work: Callable[[Child], str]) -> None:
        self.heard, self._tells = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=self._be_the_child, args=(work,))
        self._result, self._note = "", ""
        self._start, self._since = 0.0, time.monotonic()  # of the note, in both clocks
        self._process.start()
        self._tells.close()

    def _be_the_child(self, work: Callable[[Child], str]) -> None:
        faulthandler.disable()  # its status says how it ended
        held = psutil.Process().memory_info().data
        resource.setrlimit(resource.RLIMIT_DATA, (held + MOST_MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        self._tells.send((work(self), None))

    def note(self, text: str) -> None:
        """Say what comes next, in the child."""
        self._tells.send((text, time.process_time()))

    def poll(self) -> Ended | None:
        """Return how it ended; None while it works within its limits."""
        has_ended = self._process.exitcode is not None
        self._listen()
        if has_ended:
            self._process.join()
            if self._process.exitcode == 0:
                return Ended(result=self._result)
            said = f"the process ended with status {self._process.exitcode}"
            return Ended(said=said, note=self._note)
        times = psutil.Process(self._process.pid).cpu_times()
        spent = times.user + times.system - self._start
        waited = time.monotonic() - self._since
        if spent < MOST_SECONDS and waited < MOST_WAITING:
            return None
        self._process.kill()
        self._process.join()
        what = f"{spent:.0f} CPU seconds" if spent >= MOST_SECONDS else f"waited {waited:.0f} s"
        return Ended(said=f"not done after {what}", note=self._note, seconds=spent)

    def _listen(self) -> None:
        """Take what the child has said; one that was killed may end within a word."""
        try:
            while self.heard.poll():
                text, start = self.heard.recv()
                if start is None:
                    self._result = text
                else:
                    self._note, self._start, self._since = text, start, time.monotonic()
        except (EOFError, OSError):
            return


def in_processes(
    jobs: Iterable[Job], work: Callable[[Job, Child], str], workers: int
) -> Iterator[tuple[Job, Ended]]:
    """Yield each job with how its process ended, in the order in which they end."""
    gc.collect()
    gc.freeze()  # so that children share the pages of the parent
    waiting, running = iter(jobs), []
    while True:
        while len(running) < workers and (job := next(waiting, None)) is not None:
            running.append((job, Child(lambda child, job=job: work(job, child))))
        if not running:
            gc.unfreeze()
            return
        wait([child.heard for _, child in running], timeout=0.05)
        ended = [(job, child, child.poll()) for job, child in running]
        running = [(job, child) for job, child, end in ended if end is None]
        yield from ((job, end) for job, _, end in ended if end is not None)
