"""Forked processes with limits on memory and time, so that one input harms no other."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MOST_MEMORY = 4 * 2**30  # bytes that one process may hold besides what it shares
MOST_SECONDS = 62.0  # of the processor, for one input
MOST_WAITING = 400.0  # of the clock, for one input
_NOTE = 8 * 2**20  # bytes
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
        # Shared with the child: length of the note, its number, processor time at its start.
        self._shared = mmap.mmap(-1, _NOTE)
        self._reader, writer = os.pipe()
        self._result = bytearray()
        self._seen, self._since = 0, time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._reader)
            self._be_the_child(work, writer)
        os.close(writer)
        os.set_blocking(self._reader, False)

    def _be_the_child(self, work: Callable[[Child], str], writer: int) -> None:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (_held() + MOST_MEMORY,) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 0)
            data = work(self).encode()
            while data:
                data = data[os.write(writer, data) :]
            code = 0
        except BaseException as error:  # a forked child must not run on as its parent
            frames = "".join(traceback.format_tb(error.__traceback__)[-4:])
            print(f"{frames}{error!r:.500}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def note(self, text: str) -> None:
        """Say what comes next, in the child."""
        data = text.encode()[: _NOTE - 64]
        number = int.from_bytes(self._shared[8:16], "little") + 1
        self._shared[24 : 24 + len(data)] = data
        self._shared[0:8] = len(data).to_bytes(8, "little")
        self._shared[16:24] = int(time.process_time() * 1e6).to_bytes(8, "little")
        self._shared[8:16] = number.to_bytes(8, "little")

    def _noted(self) -> tuple[str, int, float]:
        length, number, start = (
            int.from_bytes(self._shared[at : at + 8], "little") for at in (0, 8, 16)
        )
        return self._shared[24 : 24 + length].decode(errors="replace"), number, start / 1e6

    def poll(self) -> Ended | None:
        """Return how it ended; None while it works within its limits."""
        self._read()
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        note, number, start = self._noted()
        if number != self._seen:
            self._seen, self._since = number, time.monotonic()
        if not ended:
            spent = _processor_time(self.pid) - start
            waited = time.monotonic() - self._since
            if spent < MOST_SECONDS and waited < MOST_WAITING:
                return None
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._close()
            what = f"{spent:.0f} CPU seconds" if spent >= MOST_SECONDS else f"waited {waited:.0f} s"
            return Ended(said=f"not done after {what}", note=note, seconds=spent)
        self._read()
        self._close()
        if status == 0:
            return Ended(result=self._result.decode())
        return Ended(said=f"the process ended with status {status}", note=note)

    def _read(self) -> None:
        while select.select([self._reader], [], [], 0)[0]:
            piece = os.read(self._reader, 1 << 16)
            if not piece:
                return
            self._result += piece

    def _close(self) -> None:
        os.close(self._reader)
        self._shared.close()


class Pool:
    """Runs jobs in forked processes, some at a time."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def map(
        self, jobs: Iterable[Job], work: Callable[[Job, Child], str]
    ) -> Iterator[tuple[Job, Ended]]:
        """Yield each job with how its process ended, in the order in which they end."""
        gc.collect()
        gc.freeze()  # so that children share the pages of the parent
        waiting, running = iter(jobs), []
        while True:
            while len(running) < self._workers:
                job = next(waiting, None)
                if job is None:
                    break
                running.append((job, Child(lambda child, job=job: work(job, child))))
            if not running:
                gc.unfreeze()
                return
            time.sleep(0.05)
            ended = [(job, child, child.poll()) for job, child in running]
            running = [(job, child) for job, child, end in ended if end is None]
            for job, _, end in ended:
                if end is not None:
                    yield job, end


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _held() -> int:
    """Return the bytes that count for the limit already."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmData:")[2].split()[0]) * 1024
