"""Offline runs of Weights & Biases (wandb 0.18 to 0.31): `run-*.wandb`.

The file is a log in the format of LevelDB, of messages that wandb's own protobuf reads. Since its
core is written in Go, wandb itself has no reader of it in Python.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_limited
from rksp.own_runs.readers.files import flat
from rksp.own_runs.run import Points, RawRun, RunReader

_MARK = b":W&B"
_BLOCK, _HEADER = 32768, 7  # bytes, of LevelDB's log format
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def _matches(path: Path) -> bool:
    return path.suffix == ".wandb" and path.is_file()


def _read(path: Path) -> Iterator[RawRun]:
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise InputError(
            f"{path} is an offline run of W&B, which needs wandb; pip install 'rksp[wandb]'."
        ) from error
    messages: Any = wandb_internal_pb2  # generated code, of which some releases declare nothing
    said: dict[str, object] = {}
    points = Points()
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
            points.add(step, {key: value for key, value in row.items() if key[:1] != "_"})
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
    if not content.startswith(_MARK):
        raise InputError(f"{path} is no run that wandb reads.")
    place, parts = len(_MARK) + 3, b""
    while place + _HEADER <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:  # the end of a block is filled up
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        place += _HEADER
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            return
        parts = (
            content[place : place + length]
            if kind in (_FULL, _FIRST)
            else (parts + content[place : place + length])
        )
        place += length
        if kind in (_FULL, _LAST):
            yield parts


def _items(items: Any) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in items:
        key = item.key or ".".join(item.nested_key)
        try:
            value = json.loads(item.value_json)
        except (ValueError, RecursionError):
            continue
        found |= flat({key: value})
    return found


READER = RunReader(name="an offline run of W&B", matches=_matches, read=_read)
