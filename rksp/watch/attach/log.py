"""The log of a watched run, and the trackers that read along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rksp.ground.errors import InputError, RkspError
from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.sinks import (
    Csv,
    JsonLines,
    MLflow,
    Sink,
    TensorBoard,
    Trackio,
    WeightsAndBiases,
)

_DENSE = 1000  # steps with all readings of layers
_SPARSE = 20  # after them, every how many steps
# name -> (its sink, whether it takes a path)
SINKS: dict[str, tuple[Any, bool]] = {
    "csv": (Csv, True),
    "tensorboard": (TensorBoard, True),
    "wandb": (WeightsAndBiases, False),
    "mlflow": (MLflow, False),
    "trackio": (Trackio, False),
}


class RunLog(JsonLines):
    """The monitors' log, with a line for what else is known of the run: its kind is not theirs.

    Runs are appended; a run begins with its line of kind `run`. After 1,000 steps the readings of
    single layers are written every 20th step and beside alarms only.
    """

    def note(self, kind: str, **facts: Any) -> None:
        """Append a line of this kind."""
        self._append(json.dumps({"kind": kind, **facts}, default=str) + "\n")

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Append the records; raises as `JsonLines.write`."""
        if readings and not alarms and readings[0].step > _DENSE and readings[0].step % _SPARSE:
            readings = [reading for reading in readings if not reading.layer]
        super().write(readings, alarms)


def check_sink(line: str) -> tuple[str, str]:
    """Return the name and the path of a line, such as `csv=watch.csv` or `wandb`.

    Raises:
        InputError: There is no such sink, or it needs a path.
    """
    name, _, path = line.partition("=")
    if name not in SINKS:
        raise InputError(f"--to {line!r} is unknown; use one of {', '.join(SINKS)}.")
    if SINKS[name][1] != bool(path):
        raise InputError(
            f"--to {line!r} should be {name}=PATH." if SINKS[name][1] else f"{name} takes no path."
        )
    return name, path


def opened_sinks(lines: Sequence[str]) -> tuple[list[Sink], list[str]]:
    """Return the sinks of these lines, and why others cannot be had."""
    found: list[Sink] = []
    missing: list[str] = []
    for line in lines:
        name, path = check_sink(line)
        try:
            found.append(SINKS[name][0](*([path] if path else [])))
        except RkspError as error:
            missing.append(f"--to {line}: {error}")
    return found, missing
