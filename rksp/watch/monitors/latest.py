"""The newest value of every quantity, for a trainer's own log."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rksp.watch.monitors.alarm import Alarm
from rksp.watch.monitors.base import Reading
from rksp.watch.monitors.rule_table import RULES, rule_of
from rksp.watch.monitors.sinks import Sink


class Latest(Sink):
    """Keeps one number for each quantity: that of the whole model, or else of the worst layer.

    The worst value is the smallest if a fall is bad, and otherwise the largest.

    Attributes:
        values: `rksp/monitor/quantity` → its newest value; `rksp/alarms` counts the alarms so far.
    """

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._alarms = 0

    def write(self, readings: Sequence[Reading], alarms: Sequence[Alarm]) -> None:
        """Replace the values by those of the new readings."""
        new: dict[str, list[Reading]] = {}
        for reading in readings:
            new.setdefault(f"rksp/{reading.monitor}/{reading.quantity}", []).append(reading)
        for tag, group in new.items():
            self.values[tag] = _worst(group)
        self._alarms += len(alarms)
        if self.values:
            self.values["rksp/alarms"] = float(self._alarms)


def _worst(readings: Sequence[Reading]) -> float:
    values = [r.value for r in readings if not r.layer] or [r.value for r in readings]
    bad = next((value for value in values if not math.isfinite(value)), None)
    if bad is not None:
        return bad
    falls = rule_of(readings[0].quantity, RULES).direction == "down"
    return min(values) if falls else max(values)
