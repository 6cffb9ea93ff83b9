"""Event files of TensorBoard and offline runs of W&B, read without either library.

Both are logs of messages in protobuf's encoding. The numbers of their fields, which never change,
are those of `event.proto`, `summary.proto` and `tensor.proto` of TensorBoard 2, and of
`wandb_internal.proto` of wandb 0.18 to 0.31.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rksp.ground.budgets import PAST_RUN
from rksp.ground.errors import InputError
from rksp.ground.files import read_limited
from rksp.ground.reading import parse_json
from rksp.own_runs.readers.logs import flat, settings_beside
from rksp.own_runs.readers.records import Records
from rksp.own_runs.run import RawRun, RunReader

_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5  # kinds of a field


_Message = dict[int, list[Any]]  # field → its values: integers, or the bytes of what it holds


def _fields(message: bytes) -> _Message:
    """Return the values of a message by their field, up to where it is damaged.

    A value is an integer, or the bytes of a number, a text or a message.
    """
    found: _Message = {}
    place = 0
    try:
        while place < len(message):
            key, place = _varint(message, place)
            size = {_EIGHT: 8, _FOUR: 4}.get(key & 7, 0)
            if key & 7 in (_VARINT, _SIZED):
                size, place = _varint(message, place)
            values = found.setdefault(key >> 3, [])
            values.append(size if key & 7 == _VARINT else message[place : place + size])
            place += 0 if key & 7 == _VARINT else size
    except IndexError:
        pass
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the integer at a place, in groups of seven bits, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise IndexError


def _text(values: Sequence[bytes]) -> str:
    return values[-1].decode(errors="replace") if values else ""


def _part(message: _Message, field: int) -> _Message:
    return _fields(message.get(field, [b""])[-1])


_EVENTS_MARK = ".tfevents"
_TEXT_ARGUMENTS = "args/text_summary"  # what Hugging Face's callback writes
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # of a tensor
_SPREAD = {1: 5, 2: 6}  # where a tensor may hold its numbers besides its content, field 4


def _is_tensorboard(path: Path) -> bool:
    if _EVENTS_MARK not in path.name or not path.is_file():
        return False
    return path.name == min(p.name for p in path.parent.iterdir() if _EVENTS_MARK in p.name)


def _read_tensorboard(path: Path) -> Iterator[RawRun]:
    records, said = Records(), settings_beside(path.parent)
    for file in sorted(p for p in path.parent.iterdir() if _EVENTS_MARK in p.name):
        for event in map(_fields, _events(file)):
            step = float(event.get(2, [0])[-1])
            for entry in map(_fields, _part(event, 5).get(1, [])):
                tag, value = _text(entry.get(1, [])), _scalar(entry)
                if value is not None:
                    records.add({"_step": step, tag: value})
                elif tag == _TEXT_ARGUMENTS:
                    said |= flat(_json(_text(_part(entry, 8).get(8, []))))
    curves = records.curves()
    if not curves:
        raise InputError(f"{path} holds no scalar.")
    yield RawRun(name=path.parent.name, file=path, said=said, curves=curves)


def _events(path: Path) -> Iterator[bytes]:
    """Yield the messages of an event file: a size, its checksum, the message, its checksum."""
    content = read_limited(path, PAST_RUN)
    place = 0
    while place + 12 <= len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        if place + 12 + size > len(content):
            return
        yield content[place + 12 : place + 12 + size]
        place += 16 + size


def _scalar(entry: _Message) -> float | None:
    if 2 in entry:
        return float(np.frombuffer(entry[2][-1], "<f4")[0]) if len(entry[2][-1]) == 4 else None
    tensor = _part(entry, 8)
    kind = tensor.get(1, [0])[-1]
    content = tensor.get(4) or tensor.get(_SPREAD.get(kind, 0))
    if kind not in _TYPES or not content or len(content[-1]) != np.dtype(_TYPES[kind]).itemsize:
        return None
    return float(np.frombuffer(content[-1], _TYPES[kind])[0])


TENSORBOARD = RunReader(matches=_is_tensorboard, read=_read_tensorboard)


_WANDB_MARK = b":W&B"
_BLOCK, _HEADER = 32768, 7  # bytes, of LevelDB's log format
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18  # fields of a record


def _read_wandb(path: Path) -> Iterator[RawRun]:
    said: dict[str, object] = {}
    points = Records()
    finals: dict[str, object] = {}
    name, state = path.stem.removeprefix("run-"), ""
    for record in map(_fields, _messages(path)):
        if _RUN in record:
            run = _part(record, _RUN)
            name = _text(run.get(8, [])) or _text(run.get(1, [])) or name
            said |= _items(_part(run, 4).get(1, []))
        elif _CONFIG in record:
            said |= _items(_part(record, _CONFIG).get(1, []))
        elif _HISTORY in record:
            history = _part(record, _HISTORY)
            row = _items(history.get(1, []))
            step = row.get("_step", _part(history, 2).get(1, [0])[-1])
            points.add({key: x for key, x in row.items() if key[:1] != "_"} | {"_step": step})
        elif _SUMMARY in record:
            finals |= _items(_part(record, _SUMMARY).get(1, []))
        elif _EXIT in record:
            state = "crashed" if _part(record, _EXIT).get(1, [0])[-1] else "finished"
    yield RawRun(
        name=name,
        file=path,
        said={key: value for key, value in said.items() if not key.startswith("_wandb")},
        finals=finals,
        curves=points.curves(),
        state=state,
    )


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the whole messages of a log; a run that was killed ends within one.

    Raises:
        InputError: It is not such a log.
    """
    content = read_limited(path, PAST_RUN)
    if not content.startswith(_WANDB_MARK):
        raise InputError(f"{path} is no run that W&B has written.")
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


def _items(items: Sequence[bytes]) -> dict[str, object]:
    found: dict[str, object] = {}
    for item in map(_fields, items):
        key = _text(item.get(1, [])) or ".".join(bytes(x).decode() for x in item.get(2, []))
        if item.get(6):  # a number of its own, from wandb 0.31 on
            found[key] = struct.unpack("<d", item[6][-1])[0]
        elif item.get(5):
            found[key] = item[5][-1]
        else:
            found |= flat({key: _json(_text(item.get(16) or item.get(8, [])))})
    return found


def _json(text: str) -> Any:
    try:
        return parse_json(text, "a message")
    except InputError:
        return {}


WANDB = RunReader(matches=lambda path: path.suffix == ".wandb" and path.is_file(), read=_read_wandb)
