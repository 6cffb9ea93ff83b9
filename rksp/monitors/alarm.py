"""The alarm: what a rule makes of readings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How sure the rule is that something is wrong, and how much."""

    WARN = "warn"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something a rule saw in stored readings.

    Attributes:
        monitor, quantity, layer: Of the reading that tripped it (the worst layer).
        step: Of that reading.
        severity: Warn or critical.
        rule: Name of the rule and its numbers, so that it can be replayed.
        value: The reading.
        baseline: What the rule compared it with; None for a hard limit.
        layers: Layers over the bar at that step.
        advice: Name of the intervention that the literature recommends, or of one that is not on
            already, or empty.
    """

    monitor: str
    quantity: str
    layer: str
    step: int
    severity: Severity
    rule: str
    value: float
    baseline: float | None
    layers: int = 1
    advice: str = ""
