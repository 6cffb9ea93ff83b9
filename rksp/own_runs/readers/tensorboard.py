"""Event files of TensorBoard (tensorboard 2), a folder of them a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError
from rksp.own_runs.readers.files import flat, settings_beside
from rksp.own_runs.run import Curve, RawRun, RunReader

_MARK = ".tfevents."
_ARGUMENTS = "args/text_summary"  # what Hugging Face's callback writes
_ALL = 0  # points kept of a series; 0 keeps every one


def _matches(path: Path) -> bool:
    """Match the first event file of a folder, which stands for all of them."""
    if _MARK not in path.name or not path.is_file():
        return False
    return path.name == min(p.name for p in path.parent.iterdir() if _MARK in p.name)


def _read(path: Path) -> Iterator[RawRun]:
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


READER = RunReader(name="TensorBoard's events", matches=_matches, read=_read)
