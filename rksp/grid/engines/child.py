"""A worker process: reads groups of cells and writes events, both as lines of JSON."""

from __future__ import annotations

import os
import signal
import sys

from rksp.ground.allocator import loading
from rksp.ground.processes import end_with


def main(coordinator: int, evaluator: str) -> None:
    """Work until the input ends or the coordinator is gone.

    Args:
        coordinator: Its process id. A parent that died before this line runs has another one.
        evaluator: The function that evaluates a group, as `package.module:function`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the coordinator, which decides
    end_with(coordinator)
    with loading():  # seconds in which the coordinator may die
        from rksp.grid.engines.base import load_evaluator, work
        from rksp.grid.group import CellGroup

    # Keep what libraries print out of the stream of events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # By lines: what waits in a buffer would come after the traceback, and be the last words.
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1, closefd=False)
    with loading():
        load_evaluator(evaluator)
    for line in sys.stdin:
        for event in work(evaluator, CellGroup.model_validate_json(line)):
            print(event.line(), file=events, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
