"""What trainers log themselves, and tables of runs.

- Tables, one run a row: CSV, JSON Lines and Parquet, as trackers export them.
- `metrics.csv` of Lightning's CSVLogger (lightning 2), with `hparams.yaml` beside it.
- `trainer_state.json` of Hugging Face's Trainer (transformers 5).
- Text logs with a line a step: Megatron-LM (`training_log`, core 0.16), GPT-NeoX, DeepSpeed
  (`print_rank_0` of its timers, `report_progress` of its engine, 0.18), or any `loss … lr …`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rksp.ground.budgets import LOG_LINE, PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_head, read_text
from rksp.own_runs.run import Points, RawRun, RunReader, number_of
from rksp.recipe_files.columns import ROWS, read_rows
from rksp.recipe_files.parse.document import is_logged, load_document, unwrapped

_HEAD = 2**16
_BESIDE = ("training_args.json", "args.json", "hparams.yaml", "arguments.json", "config.yaml")
_DEEPEST = 6  # of nested settings
_NAME_COLUMNS = ("Name", "name", "run_name", "run_id", "id", "ID", "trial_id", "number")
_STATE_COLUMNS = ("State", "state", "status", "_state")


def head_of(path: Path) -> bytes:
    """Return the beginning of a file; empty for what is no readable file."""
    try:
        return read_head(path, _HEAD)
    except InputError:
        return b""


def flat(settings: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return nested settings by dotted names; beyond six levels they are left out."""
    found: dict[str, object] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                found |= flat(value, f"{key}.", depth + 1)
        elif value is not None:
            found[key] = value
    return found


def settings_beside(folder: Path) -> dict[str, object]:
    """Return the settings in a file beside a run: its arguments, and the model that it stores.

    A file that cannot be read says nothing: it is not what the user named.
    """
    found: dict[str, object] = {}
    for name in _BESIDE:
        path = folder / name
        if not path.is_file():
            continue
        try:
            data = load_document(path).data
        except InputError:
            continue
        found = flat(unwrapped(data) if is_logged(data) else data)
        break
    model = folder / "config.json"
    if "target" not in found and model.is_file() and b'"model_type"' in head_of(model):
        found["target"] = str(model)
    return found


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in ROWS and path.is_file()


def _read_table(path: Path) -> Iterator[RawRun]:
    for number, row in enumerate(read_rows(path), start=1):
        named = next((str(row[name]) for name in _NAME_COLUMNS if name in row), "")
        state = next((str(row[name]) for name in _STATE_COLUMNS if name in row), "")
        outcome = row.get("outcome", "")
        yield RawRun(
            name=named or f"row {number}",
            file=path,
            said=row,
            finals=row,
            state=state,
            outcome=outcome if isinstance(outcome, str) else "",
        )


TABLES = RunReader(matches=_is_table, read=_read_table)


_PLACES = ("step", "epoch")  # columns that say when the others were logged


def _is_lightning(path: Path) -> bool:
    if path.name != "metrics.csv":
        return False
    columns = head_of(path).split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    return "step" in columns and "epoch" in columns


def _read_lightning(path: Path) -> Iterator[RawRun]:
    points = Points()
    for row in read_rows(path):
        logged = {_plain(name): value for name, value in row.items() if name not in _PLACES}
        points.add(row.get("step"), logged)
    folder = path.parent
    name = (
        f"{folder.parent.name}/{folder.name}" if folder.name.startswith("version_") else folder.name
    )
    yield RawRun(
        name=name,
        file=path,
        said=settings_beside(folder),
        curves=points.curves(),
    )


def _plain(name: str) -> str:
    """Return `learning_rate` for what LearningRateMonitor logs, such as lr-AdamW."""
    return "learning_rate" if name == "lr" or name.startswith("lr-") else name


LIGHTNING = RunReader(matches=_is_lightning, read=_read_lightning)


_STATE_FILE = "trainer_state.json"
_CHECKPOINT = "checkpoint-"
_LOGGED_NAMES = ("loss", "eval_loss", "learning_rate", "grad_norm")


def _is_trainer_state(path: Path) -> bool:
    """Match the state of the last checkpoint of a run; the run's own comes before all of them."""
    if path.name != _STATE_FILE:
        return False
    folder = path.parent
    if not folder.name.startswith(_CHECKPOINT):
        return True
    if (folder.parent / _STATE_FILE).is_file():
        return False
    beside = [
        p
        for p in folder.parent.glob(f"{_CHECKPOINT}*/{_STATE_FILE}")
        if _step_of(p) > _step_of(path)
    ]
    return not beside


def _step_of(path: Path) -> int:
    digits = path.parent.name.removeprefix(_CHECKPOINT)
    return int(digits) if digits.isdigit() else -1


def _read_trainer_state(path: Path) -> Iterator[RawRun]:
    try:
        state = json.loads(read_text(path, PAST_RUN))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error!s:.100}).") from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{path} holds no log_history, so it is no state of a Trainer.")
    points = Points()
    for entry in history:
        if isinstance(entry, dict):
            points.add(entry.get("step"), {name: entry.get(name) for name in _LOGGED_NAMES})
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


TRAINER_STATE = RunReader(matches=_is_trainer_state, read=_read_trainer_state)


_NUMBER = r"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_COUNT = r"(\d{1,15})(?!\d)"
_STEP = re.compile(
    rf"\b(?:iteration|step|iter|global_step)[ \t]*[:= ][ \t]*{_COUNT}"
    rf"(?:[ \t]*/[ \t]*{_COUNT})?",
    re.I,
)
_METRICS = {
    "loss": re.compile(
        rf"\b(?:lm loss|train_loss|training loss|loss)[ \t]*[:= ][ \t]*\[?{_NUMBER}", re.I
    ),
    "learning_rate": re.compile(
        rf"\b(?:learning[ _]rate|lr)[ \t]*[:= ][ \t]*\[?\(?{_NUMBER}", re.I
    ),
    "grad_norm": re.compile(rf"\b(?:grad[ _]norm)[ \t]*[:= ][ \t]*{_NUMBER}", re.I),
}
_BATCH = re.compile(rf"global[ _]batch[ _]size[ \t]*[:= ][ \t]*{_COUNT}", re.I)
# Megatron prints its arguments as `  name ...... value`.
_ARGUMENT = re.compile(r"(?:\[[^\]]*\]:?)?[ \t]*(\w+) \.{3,} (\S.*)")
_LINE = re.compile(r"[^\r\n]++")
_SUFFIXES = (".log", ".txt", ".out")


def _is_text_log(path: Path) -> bool:
    if path.suffix.lower() not in _SUFFIXES or not path.is_file():
        return False
    head = head_of(path).decode("utf-8", "replace")
    is_megatron = "megatron" in head.lower()
    return any(
        (_STEP.search(line) and _METRICS["loss"].search(line))
        or (is_megatron and _ARGUMENT.match(line))
        for line in _lines(head)
    )


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that are not empty, each cut where no logger writes on."""
    return (found[0][:LOG_LINE].strip() for found in _LINE.finditer(text))


def _read_text_log(path: Path) -> Iterator[RawRun]:
    text = read_text(path, PAST_RUN)
    points = Points()
    said: dict[str, object] = {}
    planned = 0
    for line in _lines(text):
        argument = _ARGUMENT.match(line)
        if argument is not None and argument[2] != "None":
            said[argument[1]] = argument[2]
        step = _STEP.search(line)
        if step is None:
            continue
        planned = max(planned, int(step[2] or 0))
        found = {name: pattern.search(line) for name, pattern in _METRICS.items()}
        points.add(int(step[1]), {name: float(m[1]) for name, m in found.items() if m is not None})
        batch = _BATCH.search(line)
        if batch is not None:
            said["batch_size"] = int(batch[1])
    if planned:
        said["max_steps"] = planned
    curves = points.curves()
    done = max((curve.steps[-1] for curve in curves.values()), default=0)
    state = "" if not planned else "finished" if done >= 0.99 * planned else "unfinished"
    yield RawRun(
        name=path.stem,
        file=path,
        said=said,
        curves=curves,
        state=state,
    )


TEXT_LOGS = RunReader(matches=_is_text_log, read=_read_text_log)
