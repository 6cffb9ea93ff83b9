"""Compact columns of a run's readings, from which alarms can be judged again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from rksp.ground.files import atomic_write
from rksp.watch.monitors.base import Reading

_DIGITS = 6  # significant digits of a value; the rules need tenths of its spread

Key = tuple[str, str, str]  # monitor, quantity, layer


def write_readings(path: Path, readings: Iterable[Reading]) -> None:
    """Write a column of steps and a column of values for every series, compressed.

    Details are left out, because no rule reads them.
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
    """Read the readings that `write_readings` wrote, sorted by step."""
    text = gzip.decompress(path.read_bytes()).decode()
    readings = [
        Reading(monitor=monitor, quantity=quantity, layer=layer, step=step, value=value)
        for monitor, quantity, layer, steps, values in json.loads(text)
        for step, value in zip(steps, values, strict=True)
    ]
    return sorted(readings, key=lambda reading: reading.step)
