"""Forked processes that are killed, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO

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
    except BaseException:  # a forked child must not run on as its parent
        Path(f"{os.environ.get('RKSP_FAULTS_TRACE', os.devnull)}").write_text(
            traceback.format_exc()
        )
    finally:
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


def has_ended(pid: int) -> bool:
    """Say whether a child of this process has ended; it stays to be waited for."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below one, each with the time of its start."""
    below: dict[int, str] = {}
    known = {pid}
    table = [(_stat(path)) for path in Path("/proc").glob("[0-9]*/stat")]
    rows = [row for row in table if row is not None]
    for _ in range(8):
        for number, parent, _, start in rows:
            if parent in known and number not in known:
                below[number] = start
        if set(below) <= known:
            break
        known |= set(below)
    return below


def name_of(pid: int) -> str:
    """Return the first word of a process's command line; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].strip().decode()
    except OSError:
        return ""


def alive(processes: dict[int, str]) -> dict[int, str]:
    """Return those of the processes that still run."""
    found = {}
    for pid, start in processes.items():
        row = _stat(Path(f"/proc/{pid}/stat"))
        if row is not None and row[2] != "Z" and row[3] == start:
            found[pid] = start
    return found


def seconds_until_gone(processes: dict[int, str], most: float = 30.0) -> float:
    """Return how long processes live on; what is left after `most` seconds is killed."""
    started = time.monotonic()
    while (left := alive(processes)) and time.monotonic() - started < most:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return time.monotonic() - started


def _stat(path: Path) -> tuple[int, int, str, str] | None:
    try:
        text = path.read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(path.parent.name), int(fields[1]), fields[0], fields[19]


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
