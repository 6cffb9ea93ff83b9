"""Files of records that trainers and trackers log, and tables of runs.

- Tables: CSV, JSON Lines and Parquet. A row is a run, as trackers export them; or, under a counter
  that rises, a record of one run, as Lightning's `metrics.csv` and others write it.
- JSON: the longest list of records in it, wherever it lies, as in `trainer_state.json` of Hugging
  Face's Trainer; or lists that stand side by side.
- Text: what a console showed; see `rksp.own_runs.readers.records`. A table or a document that is
  cut off or damaged is read as text too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rksp.ground.budgets import LOGGED, PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_head, read_text
from rksp.ground.reading import parse_json
from rksp.own_runs.metrics import is_metric
from rksp.own_runs.readers.records import Records, counter_of, lines_of, read_lines
from rksp.own_runs.run import RawRun, RunReader, number_of
from rksp.recipe_files.columns import ROWS, canonical, read_rows
from rksp.recipe_files.parse.document import load_document
from rksp.recipe_files.parse.values import is_logged, unwrapped

_HEAD = 2**16
_BESIDE = ("training_args.json", "args.json", "hparams.yaml", "arguments.json", "config.yaml")
_DEEPEST = 6  # of nested settings
_NAME_COLUMNS = ("Name", "name", "run_name", "run_id", "id", "ID", "trial_id", "number")
_STATE_COLUMNS = ("State", "state", "status", "_state")
_TO_THE_END = 0.99  # of the planned steps


def _head_of(path: Path) -> bytes:
    try:
        return read_head(path, _HEAD)
    except InputError:
        return b""


def flat(settings: object, prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return nested settings by dotted names; beyond six levels they are left out."""
    found: dict[str, object] = {}
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
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
    for path in filter(Path.is_file, (folder / name for name in _BESIDE)):
        try:
            data = load_document(path).data
        except InputError:
            continue
        found = flat(unwrapped(data) if is_logged(data) else data)
        break
    model = folder / "config.json"
    if "target" not in found and model.is_file() and b'"model_type"' in _head_of(model):
        found["target"] = str(model)
    return found


def _course(
    path: Path, records: Records, *, name: str = "", said: Mapping[str, object], done: float = 0
) -> RawRun:
    folder = path.parent
    is_version = folder.name.startswith("version_")  # of Lightning
    curves = {_plain(n): curve for n, curve in records.curves().items()}
    planned = number_of(said.get("max_steps")) or 0
    done = max([done, *(curve.steps[-1] for curve in curves.values())])
    is_over = done >= _TO_THE_END * planned
    return RawRun(
        name=name or (f"{folder.parent.name}/{folder.name}" if is_version else folder.name),
        file=path,
        said=said,
        curves=curves,
        state="" if planned < 1 else "finished" if is_over else "unfinished",
    )


def _plain(name: str) -> str:
    """Return `learning_rate` for what LearningRateMonitor logs, such as lr-AdamW."""
    return "learning_rate" if name == "lr" or name.startswith("lr-") else name


def _read_table(path: Path) -> Iterator[RawRun]:
    rows = read_rows(path)
    if not any(re.search("[A-Za-z]", name) for name in rows[0]):
        raise InputError(f"{path} has no header: write the names of its columns above them.")
    records = [_pivoted(flat(row), path) for row in rows]
    if _are_records(records):
        yield _course(path, Records.of(records), said=settings_beside(path.parent))
        return
    for number, row in enumerate(rows, start=1):
        outcome = row.get("outcome", "")
        yield RawRun(
            name=next((str(row[name]) for name in _NAME_COLUMNS if row.get(name)), f"row {number}"),
            file=path,
            said=row,
            finals=row,
            state=next((str(row[name]) for name in _STATE_COLUMNS if name in row), ""),
            outcome=outcome if isinstance(outcome, str) else "",
        )


_LONG = ("quantity", "metric", "variable", "key", "tag")  # columns that name what a row measures
_OF_FILE = re.compile(r"(?:.*tag-)?(.*?)(?:[ _]\(\d+\))?")  # as TensorBoard names a download


def _pivoted(row: dict[str, object], path: Path) -> dict[str, object]:
    """Return a row that names its metric beside `value`, as rksp watch writes it, under that name.

    Without one it is named by its file. What is of one layer is no metric of the run.
    """
    value = next((name for name in ("value", "Value") if name in row), None)
    name = next((row[column] for column in _LONG if isinstance(row.get(column), str)), None)
    if value is None or (name is None and len(row) > len(_TRIPLE)):
        return row
    if name is None:
        named = _OF_FILE.fullmatch(path.stem)
        name = named[1] if named and is_metric(named[1]) else value
    counters: dict[str, object] = {key: row[key] for key in ("step", "Step", "epoch") if key in row}
    return counters if row.get("layer") else counters | {str(name): row[value]}


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
    counts = counter_of(Records.of(rows).rows) is not None
    return counts or not any(canonical(n)[1] == "learning_rate" for n in columns)


_STATE_FILE = "trainer_state.json"
_CHECKPOINT = "checkpoint-"
_NO_RUNS = (*_BESIDE, "config.json")


def _is_document(path: Path) -> bool:
    if path.suffix.lower() != ".json" or path.name in _NO_RUNS or not path.is_file():
        return False
    folder = path.parent
    if path.name != _STATE_FILE or not folder.name.startswith(_CHECKPOINT):
        return True
    beside = folder.parent.glob(f"{_CHECKPOINT}*/{_STATE_FILE}")
    return not (folder.parent / _STATE_FILE).is_file() and path == max(beside, key=_step_of)


def _step_of(path: Path) -> int:
    digits = path.parent.name.removeprefix(_CHECKPOINT)
    return int(digits) if digits.isdigit() else -1


def _read_document(path: Path) -> Iterator[RawRun]:
    data = parse_json(read_text(path, PAST_RUN), path, most=LOGGED)
    rows = _rows_of(data, _DEEPEST)
    if not any(is_metric(name) for row in rows[:_PROBED] for name in row):
        return
    settings = data if isinstance(data, dict) else {}
    planned, done = (number_of(settings.get(name)) for name in ("max_steps", "global_step"))
    folder, name = path.parent, path.stem
    said = settings_beside(folder)
    if path.name == _STATE_FILE:
        folder = folder.parent if folder.name.startswith(_CHECKPOINT) else folder
        said, name = said | settings_beside(folder), folder.name
    if planned is not None and planned >= 1:
        said["max_steps"] = int(planned)
    yield _course(path, Records.of(rows), name=name, said=said, done=done or 0)


_PROBED = 100  # records of which one has a metric, if any has
_TRIPLE = ("wall_time", "step", "value")  # a list of these is what TensorBoard's page downloads
_OBJECT = re.compile(r"\{[^{}]*\}")


def _objects(text: str) -> Iterator[dict[str, object]]:
    lines = [line for line in text.splitlines() if line[:1] == "{" and line.rstrip()[-1] == "}"]
    for part in lines or (found[0] for found in _OBJECT.finditer(text)):
        with contextlib.suppress(InputError):
            yield parse_json(part, "the text")


def _rows_of(data: object, depth: int) -> list[dict[str, object]]:
    if isinstance(data, list):
        triples = [row for row in data if isinstance(row, list) and len(row) == len(_TRIPLE)]
        return [dict(zip(_TRIPLE, row, strict=True)) for row in triples] or [
            flat(row) for row in data if isinstance(row, dict)
        ]
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


_BATCH = re.compile(r"global[ _]batch[ _]size[ \t]*[:= ][ \t]*(\d{1,15})(?!\d)", re.I)
# Megatron prints its arguments as `  name ...... value`.
_ARGUMENT = re.compile(r"(?:\[[^\]]*\]:?)?[ \t]*(\w+) \.{3,} (\S.*)")
_CONSOLES = (".log", ".txt", ".out", ".err", "")


def _read_text(path: Path) -> Iterator[RawRun]:
    text = read_text(path, PAST_RUN)
    rows = list(_objects(text)) if path.suffix.lower() not in _CONSOLES else []
    said: dict[str, object] = settings_beside(path.parent) if rows else {}
    lines = list(lines_of(text))
    for line in lines:
        argument = _ARGUMENT.match(line)
        if argument is not None and argument[2] != "None":
            said[argument[1]] = argument[2]
        if batch := _BATCH.search(line):
            said["batch_size"] = int(batch[1])
    found = Records.of(map(flat, rows)) if rows else read_lines(lines, path.name)
    if found.planned:
        said["max_steps"] = found.planned
    run = _course(path, found, name=path.stem, said=said)
    if run.curves or said:
        yield run


def _is_log(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in ROWS:
        return path.is_file()
    is_named = suffix in _CONSOLES or suffix[1:].lstrip("eo").isdigit()  # of a queue: job.o616743
    return _is_document(path) or (is_named and path.is_file() and b"\0" not in _head_of(path))


def _read_log(path: Path) -> Iterator[RawRun]:
    """Yield the runs of a file; a table or a document that a process was killed within is a text.

    Raises:
        InputError: It is a damaged table, and as a text it holds nothing.
    """
    suffix = path.suffix.lower()
    read = _read_table if suffix in ROWS else _read_document if suffix == ".json" else _read_text
    try:
        found = list(read(path))
    except InputError:
        found = [] if suffix == ".parquet" else [run for run in _read_text(path) if run.curves]
        if not found and suffix in ROWS:  # other JSON in a folder need not be a log
            raise
    yield from found


LOGS = RunReader(matches=_is_log, read=_read_log)
