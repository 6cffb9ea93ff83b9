"""Offline runs of Weights & Biases (wandb 0.2x): `run-*.wandb`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rksp.ground.errors import InputError
from rksp.own_runs.readers.files import flat
from rksp.own_runs.run import Curve, RawRun, RunReader, number_of


def _matches(path: Path) -> bool:
    return path.suffix == ".wandb" and path.is_file()


def _read(path: Path) -> Iterator[RawRun]:
    try:
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore
    except ImportError as error:
        raise InputError(
            f"{path} is an offline run of W&B, which needs wandb; pip install 'rksp[wandb]'."
        ) from error
    said: dict[str, object] = {}
    points: dict[str, dict[int, float]] = {}
    finals: dict[str, object] = {}
    name, code = path.stem.removeprefix("run-"), None
    try:
        store: Any = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record: Any = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name = record.run.display_name or record.run.run_id or name
                said |= _items(record.run.config.update)
            elif kind == "config":
                said |= _items(record.config.update)
            elif kind == "history":
                _add(points, _items(record.history.item), record.history.step.num)
            elif kind == "summary":
                finals |= _items(record.summary.update)
            elif kind == "exit":
                code = record.exit.exit_code
    except Exception as error:  # protobuf's DecodeError, assertions of the store
        if not points and not finals:
            raise InputError(f"{path} is no run that wandb reads ({error!s:.100}).") from error
    yield RawRun(
        name=name,
        file=path,
        said={key: value for key, value in said.items() if not key.startswith("_wandb")},
        finals=finals,
        curves={key: Curve.of(found) for key, found in points.items()},
        state="" if code is None else "finished" if code == 0 else "crashed",
    )


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


def _add(points: dict[str, dict[int, float]], row: dict[str, object], step: int) -> None:
    at = number_of(row.get("_step", step))
    if at is None or not 0 <= at < 2**53:
        return
    for key, value in row.items():
        known = number_of(value)
        if known is not None and not key.startswith("_"):
            points.setdefault(key, {})[int(at)] = known


READER = RunReader(name="an offline run of W&B", matches=_matches, read=_read)
