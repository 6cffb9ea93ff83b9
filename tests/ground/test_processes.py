"""Workers end with their coordinator, whatever they are doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# The worker sleeps in C and keeps the interpreter's lock, as the import of a large library does.
WORKER = """
import ctypes, os, sys
from rksp.ground.processes import end_with
if sys.argv[1] == "watched":
    end_with(os.getppid())
print(os.getpid(), flush=True)
ctypes.PyDLL(None).sleep(60)
"""
COORDINATOR = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(60)
"""


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize("how", ["watched", "alone"])
def test_a_worker_that_lets_no_thread_run_ends_with_its_coordinator(how):
    command = [sys.executable, "-c", COORDINATOR, WORKER, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        worker = int(coordinator.stdout.readline())
        time.sleep(0.2)
        coordinator.send_signal(signal.SIGKILL)
        coordinator.stdout.close()
    end = time.monotonic() + 5
    while _is_alive(worker) and time.monotonic() < end and how == "watched":
        time.sleep(0.02)
    assert _is_alive(worker) == (how == "alone")
    if how == "alone":
        os.kill(worker, signal.SIGKILL)
