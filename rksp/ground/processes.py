"""Keep worker processes safe: they import nothing from the working folder and end in time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

import psutil

_INTERVAL = 0.5  # seconds
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def safe_path() -> dict[str, str]:
    """Return the variables with which a worker finds this rksp and nothing of the working folder.

    Python otherwise puts the working folder first on the path, and would import a file of the
    repository under test in place of an installed package.
    """
    _, *checkout = sys.modules["rksp"].__path__
    places = [*checkout, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONSAFEPATH": "1"} | ({"PYTHONPATH": os.pathsep.join(places)} if places else {})


def end_with(coordinator: int) -> None:
    """End this process soon after its parent ends, because nobody would take its results.

    Args:
        coordinator: Process id of the parent, as the parent gave it. A parent that died before
            this call is noticed too.
    """
    # At once, even while an import or a kernel keeps other threads out.
    signal_at_end_of_parent(signal.SIGKILL)
    threading.Thread(target=_watch, args=(coordinator,), daemon=True).start()


def signal_at_end_of_parent(number: int) -> None:
    """Let this process get a signal once its parent ends; on Linux alone."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, number)


def _watch(coordinator: int) -> None:
    # Windows keeps the number of a dead parent, so that it is looked up too.
    while os.getppid() == coordinator and psutil.pid_exists(coordinator):
        time.sleep(_INTERVAL)
    os._exit(1)
