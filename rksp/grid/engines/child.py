"""A worker process: reads groups of cells and answers with events, both as lines of JSON."""

from __future__ import annotations

import itertools
import json
import os
import sys

from rksp.processes import end_with


def main(coordinator: int, evaluator: str) -> None:
    """Works until its input ends; leaves when the coordinator is gone.

    Args:
        coordinator: Its process id. A parent that died before this line runs has another one.
        evaluator: What answers a group, as `package.module:function`.
    """
    end_with(coordinator)
    from rksp.grid.evaluate import load_evaluator  # seconds in which the coordinator may die

    # What libraries print must not end up between the events.
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    evaluate = load_evaluator(evaluator)
    for line in sys.stdin:
        for event in itertools.chain(({"kind": "started"},), evaluate(json.loads(line)), (None,)):
            print(json.dumps(event), file=events, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
