"""What trainers and trackers log, and tables of runs.

- Tables: CSV, JSON Lines and Parquet. A row is a run, as trackers export them; or, under a counter
  that rises, a record of one run, as Lightning's `metrics.csv` and others write it.
- JSON: `trainer_state.json` of Hugging Face's Trainer (transformers 5), lists of records and
  records of lists.
- What a console showed: see `rksp.own_runs.readers.records`.
- Weights & Biases (wandb 0.18 to 0.31): `run-*.wandb` of an offline run. The file is a log in the
  format of LevelDB, of messages that wandb's own protobuf reads. Since its core is written in Go,
  wandb itself has no reader of it in Python.
- TensorBoard (tensorboard 2): event files, a folder of them a run.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rksp.ground.budgets import LOGGED, PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_head, read_limited, read_text
from rksp.ground.reading import parse_json
from rksp.own_runs.readers.records import Records, is_metric, lines_of, read_lines
from rksp.own_runs.run import Curve, RawRun, RunReader, number_of
from rksp.recipe_files.columns import ROWS, canonical, read_rows
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
        key = f"{prefix}{name}".strip()
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


def _read_table(path: Path) -> Iterator[RawRun]:
    rows = read_rows(path)
    records = [_pivoted(flat(row)) for row in rows]
    if _are_records(records):
        yield _course(path, records)
        return
    for number, row in enumerate(rows, start=1):
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


_LONG = ("quantity", "metric", "variable", "key", "tag")  # columns that name what a row measures


def _pivoted(row: dict[str, object]) -> dict[str, object]:
    """Return a row that names its metric beside `value`, as rksp watch writes it, under that name.

    What is of one layer is no metric of the run.
    """
    name = next((row[column] for column in _LONG if isinstance(row.get(column), str)), None)
    if name is None or "value" not in row:
        return row
    counters: dict[str, object] = {key: row[key] for key in ("step", "epoch") if key in row}
    return counters if row.get("layer") else counters | {str(name): row["value"]}


def _are_records(rows: Sequence[Mapping[str, object]]) -> bool:
    """Tell whether rows are records of one run: no names or states, and a counter that rises.

    Without a counter they are where no row says a rate: a sweep would.
    """
    columns = {name for row in rows for name in row}
    named = [name for name in (*_NAME_COLUMNS, *_STATE_COLUMNS, "outcome") if name in columns]
    if any(len({str(row.get(name)) for row in rows}) > 1 for name in named):
        return False
    if not any(is_metric(name) for name in columns):
        return False
    return Records.of(rows).counts or not any(canonical(n)[1] == "learning_rate" for n in columns)


def _course(
    path: Path,
    rows: Iterable[Mapping[str, object]],
    *,
    name: str = "",
    said: Mapping[str, object] | None = None,
    state: str = "",
) -> RawRun:
    """Return the run whose records these are; settings beside the file are its own."""
    folder = path.parent
    is_version = folder.name.startswith("version_")  # of Lightning
    usual = f"{folder.parent.name}/{folder.name}" if is_version else folder.name
    return RawRun(
        name=name or usual,
        file=path,
        said=settings_beside(folder) if said is None else said,
        curves={_plain(n): curve for n, curve in Records.of(rows).curves().items()},
        state=state,
    )


def _plain(name: str) -> str:
    """Return `learning_rate` for what LearningRateMonitor logs, such as lr-AdamW."""
    return "learning_rate" if name == "lr" or name.startswith("lr-") else name


TABLES = RunReader(
    matches=lambda path: path.suffix.lower() in ROWS and path.is_file(), read=_read_table
)


_STATE_FILE = "trainer_state.json"
_CHECKPOINT = "checkpoint-"


def _is_trainer_state(path: Path) -> bool:
    """Match the state of the last checkpoint of a run; the run's own comes before all of them."""
    if path.name != _STATE_FILE:
        return False
    folder = path.parent
    if not folder.name.startswith(_CHECKPOINT):
        return True
    if (folder.parent / _STATE_FILE).is_file():
        return False
    beside = folder.parent.glob(f"{_CHECKPOINT}*/{_STATE_FILE}")
    return all(_step_of(other) <= _step_of(path) for other in beside)


def _step_of(path: Path) -> int:
    digits = path.parent.name.removeprefix(_CHECKPOINT)
    return int(digits) if digits.isdigit() else -1


def _read_trainer_state(path: Path) -> Iterator[RawRun]:
    state = _json(path)
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{path} holds no log_history, so it is no state of a Trainer.")
    planned, done = (number_of(state.get(name)) for name in ("max_steps", "global_step"))
    folder = path.parent
    run = folder.parent if folder.name.startswith(_CHECKPOINT) else folder
    said = settings_beside(folder) | settings_beside(run)
    if planned is not None and planned >= 1:
        said["max_steps"] = int(planned)
    is_over = planned is not None and done is not None and done >= planned
    rows = [row for row in history if isinstance(row, dict) and row.get("step") is not None]
    yield _course(
        path, rows, name=run.name, said=said, state="finished" if is_over else "unfinished"
    )


TRAINER_STATE = RunReader(matches=_is_trainer_state, read=_read_trainer_state)


def _json(path: Path) -> Any:
    return parse_json(read_text(path, PAST_RUN), path, most=LOGGED)


def _read_json(path: Path) -> Iterator[RawRun]:
    """Yield the run whose records a file of JSON holds; none where it holds something else."""
    try:
        rows = _rows_of(_json(path), _DEEPEST)
    except InputError:
        return  # a folder holds other files that end so
    if any(is_metric(name) for row in rows[:_PROBED] for name in row):
        yield _course(path, rows, name=path.stem)


_PROBED = 100  # records of which one has a metric, if any has


def _rows_of(data: object, depth: int) -> list[dict[str, object]]:
    """Return the longest list of records in a document, or of lists that stand side by side."""
    if isinstance(data, list):
        return [flat(row) for row in data if isinstance(row, dict)]
    if not isinstance(data, dict) or depth == 0:
        return []
    lists = {str(n): x for n, x in data.items() if isinstance(x, list) and x and _is_series(x)}
    rows = _side_by_side(lists)
    numbered = {n: row for n, row in data.items() if str(n).isdigit() and isinstance(row, dict)}
    inner = [_rows_of(part, depth - 1) for part in data.values()]
    return max(rows, [{"step": int(n)} | flat(row) for n, row in numbered.items()], *inner, key=len)


def _side_by_side(lists: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return lists as rows; a shorter one, such as of evaluations, is spread over the longest."""
    size = max(map(len, lists.values()), default=0)
    rows: list[dict[str, object]] = [{} for _ in range(size)]
    for name, values in lists.items():
        for n, value in enumerate(values, start=1):
            rows[n * size // len(values) - 1][name] = value
    return rows


def _is_series(values: Sequence[object]) -> bool:
    return all(value is None or isinstance(value, int | float | str) for value in values)


_NO_RUNS = (*_BESIDE, "config.json", _STATE_FILE)
JSON = RunReader(
    matches=lambda path: path.suffix.lower() == ".json" and path.name not in _NO_RUNS,
    read=_read_json,
)


_COUNT = r"(\d{1,15})(?!\d)"
_BATCH = re.compile(rf"global[ _]batch[ _]size[ \t]*[:= ][ \t]*{_COUNT}", re.I)
# Megatron prints its arguments as `  name ...... value`.
_ARGUMENT = re.compile(r"(?:\[[^\]]*\]:?)?[ \t]*(\w+) \.{3,} (\S.*)")
_SUFFIXES = (".log", ".txt", ".out", ".err", "")


def _is_text_log(path: Path) -> bool:
    """Match the text of a console: all but what holds bytes that no console writes."""
    is_named = path.suffix.lower() in _SUFFIXES or path.suffix[1:].isdigit()
    return is_named and path.is_file() and b"\0" not in head_of(path)


def _read_text_log(path: Path) -> Iterator[RawRun]:
    lines = list(lines_of(read_text(path, PAST_RUN)))
    found = read_lines(lines)
    said: dict[str, object] = {}
    for line in lines:
        argument = _ARGUMENT.match(line)
        if argument is not None and argument[2] != "None":
            said[argument[1]] = argument[2]
        if batch := _BATCH.search(line):
            said["batch_size"] = int(batch[1])
    curves, planned = {_plain(n): c for n, c in found.curves().items()}, found.planned
    if planned:
        said["max_steps"] = planned
    done = max((curve.steps[-1] for curve in curves.values()), default=0)
    state = "" if not planned else "finished" if done >= 0.99 * planned else "unfinished"
    if curves or said:
        yield RawRun(name=path.stem, file=path, said=said, curves=curves, state=state)


TEXT_LOGS = RunReader(matches=_is_text_log, read=_read_text_log)


_WANDB_MARK = b":W&B"
_BLOCK, _HEADER = 32768, 7  # bytes, of LevelDB's log format
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def _read_wandb(path: Path) -> Iterator[RawRun]:
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise InputError(
            f"{path} is an offline run of W&B, which needs wandb; pip install 'rksp[wandb]'."
        ) from error
    messages: Any = wandb_internal_pb2  # generated code, of which some releases declare nothing
    said: dict[str, object] = {}
    points = Records()
    finals: dict[str, object] = {}
    name, code = path.stem.removeprefix("run-"), None
    for data in _messages(path):
        record: Any = messages.Record()
        try:
            record.ParseFromString(data)
        except Exception as error:  # protobuf's DecodeError
            raise InputError(f"{path} is no run that wandb reads ({error!s:.100}).") from error
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name = record.run.display_name or record.run.run_id or name
            said |= _items(record.run.config.update)
        elif kind == "config":
            said |= _items(record.config.update)
        elif kind == "history":
            row = _items(record.history.item)
            step = row.get("_step", record.history.step.num)
            points.add({key: x for key, x in row.items() if key[:1] != "_"} | {"_step": step})
        elif kind == "summary":
            finals |= _items(record.summary.update)
        elif kind == "exit":
            code = record.exit.exit_code
    yield RawRun(
        name=name,
        file=path,
        said={key: value for key, value in said.items() if not key.startswith("_wandb")},
        finals=finals,
        curves=points.curves(),
        state="" if code is None else "finished" if code == 0 else "crashed",
    )


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the whole messages of a log; a run that was killed ends within one.

    Raises:
        InputError: It is not such a log.
    """
    content = read_limited(path, PAST_RUN)
    if not content.startswith(_WANDB_MARK):
        raise InputError(f"{path} is no run that wandb reads.")
    place, parts = len(_WANDB_MARK) + 3, b""
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:  # the end of a block is filled up
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        place += _HEADER
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            return
        part = content[place : place + length]
        parts = part if kind in (_FULL, _FIRST) else parts + part
        place += length
        if kind in (_FULL, _LAST):
            yield parts


def _items(items: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in items:
        key = item.key or ".".join(item.nested_key)
        try:
            value = parse_json(item.value_json, "W&B's summary")
        except InputError:
            continue
        found |= flat({key: value})
    return found


WANDB = RunReader(matches=lambda path: path.suffix == ".wandb" and path.is_file(), read=_read_wandb)


_EVENTS_MARK = ".tfevents."
_TEXT_ARGUMENTS = "args/text_summary"  # what Hugging Face's callback writes
_ALL = 0  # points kept of a series; 0 keeps every one


def _is_tensorboard(path: Path) -> bool:
    """Match the first event file of a folder, which stands for all of them."""
    if _EVENTS_MARK not in path.name or not path.is_file():
        return False
    return path.name == min(p.name for p in path.parent.iterdir() if _EVENTS_MARK in p.name)


def _read_tensorboard(path: Path) -> Iterator[RawRun]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise InputError(
            f"{path} is TensorBoard's, which needs tensorboard; pip install 'rksp[tensorboard]'."
        ) from error
    events: Any = EventAccumulator(
        str(path.parent), size_guidance={"scalars": _ALL, "tensors": _ALL}
    )
    events.Reload()
    tags = events.Tags()
    curves = {
        tag: Curve.of({e.step: float(e.value) for e in events.Scalars(tag)})
        for tag in tags["scalars"]
    }
    for tag in tags["tensors"]:  # what torch's writer with new_style, and TensorFlow, write
        curves |= _tensor_curve(events, tag)
    if not curves:
        raise InputError(f"{path} holds no scalar.")
    yield RawRun(
        name=path.parent.name,
        file=path,
        said=settings_beside(path.parent) | _arguments(events, tags["tensors"]),
        curves=curves,
    )


def _tensor_curve(events: Any, tag: str) -> dict[str, Curve]:
    from tensorboard.util.tensor_util import make_ndarray

    points = {}
    for event in events.Tensors(tag):
        value = make_ndarray(event.tensor_proto)
        if value.size != 1 or value.dtype.kind not in "fiu":
            return {}
        points[event.step] = float(value.reshape(()))
    return {tag: Curve.of(points)} if points else {}


def _arguments(events: Any, tags: list[str]) -> dict[str, object]:
    """Return the arguments that Hugging Face's callback logs as text."""
    if _TEXT_ARGUMENTS not in tags:
        return {}
    text = events.Tensors(_TEXT_ARGUMENTS)[0].tensor_proto.string_val[0]
    try:
        found = parse_json(text, "TensorBoard's arguments")
    except InputError:
        return {}
    return flat(found) if isinstance(found, dict) else {}


TENSORBOARD = RunReader(matches=_is_tensorboard, read=_read_tensorboard)
