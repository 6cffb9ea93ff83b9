"""The log of a watched run, and the trackers that read along."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.sinks import (
    JsonLines,
    MLflow,
    Sink,
    TensorBoard,
    Trackio,
    WeightsAndBiases,
)

_DENSE = 1000  # steps with all readings of layers
_SPARSE = 20  # after them, every how many steps
TRACKERS: dict[str, type[Sink]] = {
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


class Careful(Sink):
    """Passes on to a sink until it fails once: a full disk or a lost tracker ends no watch.

    Were a rank to detach, the others would wait for it where ranks exchange numbers.

    Args:
        sink: The sink.
        say: Prints a line.
    """

    def __init__(self, sink: Sink, say: Callable[[str], None]) -> None:
        self._sink: Sink | None = sink
        self._say = say

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Write, or do nothing once that failed."""
        self._pass_on(lambda sink: sink.write(readings, alarms))

    def close(self) -> None:
        """Close the sink."""
        self._pass_on(lambda sink: sink.close())

    def _pass_on(self, call: Callable[[Sink], None]) -> None:
        if self._sink is None:
            return
        try:
            call(self._sink)
        except Exception as error:
            failed, self._sink = self._sink, None
            self._say(f"{type(failed).__name__} gets nothing more: {error}")
            with contextlib.suppress(Exception):
                failed.close()
