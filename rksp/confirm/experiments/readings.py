"""Readings of a run in columns, small enough to keep: alarms can be judged again from them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from rksp.files import atomic_write
from rksp.monitors.base import Reading

_DIGITS = 6  # of a value; the rules look at tenths of its spread

Key = tuple[str, str, str]  # monitor, quantity, layer


def write_readings(path: Path, readings: Iterable[Reading]) -> None:
    """Writes a column of steps and one of values for every series, compressed.

    Details are left out: no rule reads them.
    """
    columns: dict[Key, tuple[list[int], list[float]]] = {}
    for reading in readings:
        key = (reading.monitor, reading.quantity, reading.layer)
        steps, values = columns.setdefault(key, ([], []))
        steps.append(reading.step)
        values.append(float(f"{reading.value:.{_DIGITS}g}"))
    text = json.dumps([[*key, *column] for key, column in columns.items()])
    atomic_write(path, gzip.compress(text.encode(), mtime=0))


def read_readings(path: Path) -> list[Reading]:
    """What `write_readings` wrote, by step."""
    text = gzip.decompress(path.read_bytes()).decode()
    readings = [
        Reading(monitor=monitor, quantity=quantity, layer=layer, step=step, value=value)
        for monitor, quantity, layer, steps, values in json.loads(text)
        for step, value in zip(steps, values, strict=True)
    ]
    return sorted(readings, key=lambda reading: reading.step)
