"""Runs that a tracker stored.

- Weights & Biases (wandb 0.18 to 0.31): `run-*.wandb` of an offline run. The file is a log in the
  format of LevelDB, of messages that wandb's own protobuf reads. Since its core is written in Go,
  wandb itself has no reader of it in Python.
- TensorBoard (tensorboard 2): event files, a folder of them a run.
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
from rksp.own_runs.readers.logs import flat, settings_beside
from rksp.own_runs.run import Curve, Points, RawRun, RunReader

_WANDB_MARK = b":W&B"
_BLOCK, _HEADER = 32768, 7  # bytes, of LevelDB's log format
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def _is_wandb(path: Path) -> bool:
    return path.suffix == ".wandb" and path.is_file()


def _read_wandb(path: Path) -> Iterator[RawRun]:
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


WANDB = RunReader(matches=_is_wandb, read=_read_wandb)


_EVENTS_MARK = ".tfevents."
_ARGUMENTS = "args/text_summary"  # what Hugging Face's callback writes
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
    if _ARGUMENTS not in tags:
        return {}
    text = events.Tensors(_ARGUMENTS)[0].tensor_proto.string_val[0]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return flat(found) if isinstance(found, dict) else {}


TENSORBOARD = RunReader(matches=_is_tensorboard, read=_read_tensorboard)
