"""`trainer_state.json` of Hugging Face's Trainer (transformers 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rksp.ground.errors import InputError
from rksp.own_runs.readers.files import read_json, settings_beside
from rksp.own_runs.run import Points, RawRun, RunReader, number_of

_NAME = "trainer_state.json"
_CHECKPOINT = "checkpoint-"
_LOGGED = ("loss", "eval_loss", "learning_rate", "grad_norm")


def _matches(path: Path) -> bool:
    """Match the state of the last checkpoint of a run; the run's own comes before all of them."""
    if path.name != _NAME:
        return False
    folder = path.parent
    if not folder.name.startswith(_CHECKPOINT):
        return True
    if (folder.parent / _NAME).is_file():
        return False
    beside = [p for p in folder.parent.glob(f"{_CHECKPOINT}*/{_NAME}") if _step(p) > _step(path)]
    return not beside


def _step(path: Path) -> int:
    digits = path.parent.name.removeprefix(_CHECKPOINT)
    return int(digits) if digits.isdigit() else -1


def _read(path: Path) -> Iterator[RawRun]:
    state = read_json(path)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{path} holds no log_history, so it is no state of a Trainer.")
    points = Points()
    for entry in history:
        if isinstance(entry, dict):
            points.add(entry.get("step"), {name: entry.get(name) for name in _LOGGED})
    planned, done = (number_of(state.get(name)) for name in ("max_steps", "global_step"))
    folder = path.parent
    run = folder.parent if folder.name.startswith(_CHECKPOINT) else folder
    said = settings_beside(folder) | settings_beside(run)
    if planned is not None and planned >= 1:
        said["max_steps"] = int(planned)
    is_over = planned is not None and done is not None and done >= planned
    yield RawRun(
        name=run.name,
        file=path,
        said=said,
        curves=points.curves(),
        state="finished" if is_over else "unfinished",
    )


READER = RunReader(name="a Trainer's state", matches=_matches, read=_read)
