"""The log of a watched run, and the trackers that read along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.sinks import (
    JsonLines,
    MLflow,
    TensorBoard,
    Trackio,
    WeightsAndBiases,
)

_DENSE = 1000  # steps with all readings of layers
_SPARSE = 20  # after them, every how many steps
TRACKERS = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
    "trackio": Trackio,
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
