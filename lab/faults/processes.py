"""Forked processes that are killed, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import IO

import psutil

from rksp.grid.engines import child, local


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a forked process without output, in a process group of its own.

    Returns:
        The process id. The process leaves with 0, with `SystemExit`'s code, or with 70.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        work()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:  # a forked child must not run on as its parent
        os._exit(code)


def exit_code(pid: int, seconds: float = 300.0) -> int | None:
    """Wait for a process; None if it had to be killed after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def code_of(work: Callable[[], object], seconds: float = 300.0) -> int | None:
    """Return the exit code of some work in a forked process; None if it took too long."""
    return exit_code(forked(work), seconds)


def has_ended(pid: int) -> bool:
    """Say whether a child of this process has ended; it stays to be waited for."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return those of the processes that still run."""
    return [process for process in processes if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def seconds_until_gone(processes: Sequence[psutil.Process], most: float = 30.0) -> float:
    """Return how long processes live on; what is left after `most` seconds is killed."""
    started = time.monotonic()
    while (left := alive(processes)) and time.monotonic() - started < most:
        time.sleep(0.02)
    for process in left:
        process.kill()
    return time.monotonic() - started


def fork_workers() -> None:
    """Let the local engine of this process fork its workers instead of starting them."""
    local.subprocess = SimpleNamespace(Popen=ForkedWorker, PIPE=subprocess.PIPE)


class ForkedWorker:
    """A worker of the local engine that is forked, not started: it costs no imports.

    It stands in for `subprocess.Popen` in a coordinator, and runs the same code as the real one.
    """

    def __init__(self, command: list[str], *, stderr: IO[bytes], **more: object) -> None:
        take, self._give = os.pipe()
        self._take, give = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                for number, stream in enumerate((take, give, stderr.fileno())):
                    os.dup2(stream, number)
                os.closerange(3, 512)
                sys.stdin = os.fdopen(0, encoding="utf-8")
                child.main(int(command[-2]), command[-1])
            finally:
                os._exit(1)
        os.close(take)
        os.close(give)
        self.stdin = os.fdopen(self._give, "w", encoding="utf-8")
        self.stdout = os.fdopen(self._take, encoding="utf-8")

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        """Wait until it has ended."""
        while self.poll() is None:
            time.sleep(0.005)
        return self.returncode
