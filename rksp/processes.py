"""Keep worker processes safe: they import nothing from the working folder and end in time."""

from __future__ import annotations

import os
import threading
import time

# Environment of a worker. Without it Python puts the working folder first on the path, and would
# import a file of the repository under test in place of an installed package.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_INTERVAL = 0.5  # seconds


def end_with(coordinator: int) -> None:
    """End this process soon after its parent ends, because nobody would take its results.

    Args:
        coordinator: Process id of the parent, as the parent gave it. A parent that died before
            this call is noticed too.
    """
    threading.Thread(target=_watch, args=(coordinator,), daemon=True).start()


def _watch(coordinator: int) -> None:
    while os.getppid() == coordinator:
        time.sleep(_INTERVAL)
    os._exit(1)
