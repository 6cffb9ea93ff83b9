"""Trials of Ray Tune (ray 2): `result.json`, one JSON object a reported result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_text
from rksp.own_runs.readers.files import flat, head_of
from rksp.own_runs.run import Points, RawRun, RunReader

_OWN = ("config", "hostname", "node_ip", "pid", "date", "timestamp", "trial_id", "done")
_MARKS = (b'"training_iteration"', b'"trial_id"')


def _matches(path: Path) -> bool:
    head = head_of(path) if path.name == "result.json" else b""
    return all(mark in head for mark in _MARKS)


def _read(path: Path) -> Iterator[RawRun]:
    points = Points()
    last: dict[str, object] = {}
    for line in read_text(path, PAST_RUN).splitlines():
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the last line of a killed trial
        if not isinstance(result, dict):
            continue
        last = result
        step = result.get("step", result.get("training_iteration"))
        points.add(step, flat({k: v for k, v in result.items() if k not in _OWN}))
    if not last:
        raise InputError(f"{path} holds no result of a trial.")
    config = last.get("config")
    settings = flat(config) if isinstance(config, dict) else {}
    inner = settings.keys() & {name for name in settings if name.startswith("train_loop_config.")}
    said = {name.removeprefix("train_loop_config."): settings[name] for name in inner} or settings
    failed = (path.parent / "error.txt").is_file()
    yield RawRun(
        name=str(last.get("trial_id", path.parent.name)),
        file=path,
        said=said,
        curves=points.curves(),
        state="failed" if failed else "finished" if last.get("done") else "unfinished",
    )


READER = RunReader(name="Ray Tune's results", matches=_matches, read=_read)
