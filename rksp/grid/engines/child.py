"""A worker process: reads tasks as lines of JSON, answers with events as lines of JSON."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time

from rksp.grid.evaluate import load_evaluator


def main(evaluator: str) -> None:
    """Works until its input ends; leaves when the coordinator is gone."""
    # What libraries print must not end up between the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    parent = os.getppid()
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    evaluate = load_evaluator(evaluator)
    for line in sys.stdin:
        for event in itertools.chain(({"kind": "started"},), evaluate(json.loads(line)), (None,)):
            print(json.dumps(event), file=events, flush=True)


def _leave_with(parent: int) -> None:
    """A long profile for a coordinator that was killed would be work for nobody."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
