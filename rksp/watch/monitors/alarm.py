"""The alarm, which a rule raises on readings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How certain and how serious the trouble is."""

    WARN = "warn"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A rule's finding in stored readings.

    Attributes:
        monitor: Monitor of the reading that raised it.
        quantity: Quantity of that reading.
        layer: Layer of that reading, the worst layer.
        step: Step of that reading.
        severity: Warn or critical.
        rule: Name of the rule and its numbers, so that it can be replayed.
        value: Value of the reading.
        baseline: The value that the rule compared it with; None for a hard limit.
        layers: Number of layers over the bar at that step.
        advice: The intervention that the literature recommends; another one if that one is already
            active; or empty.
        is_escalation: Whether a warning of the same episode came before it. An episode counts as
            one alarm.
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
    is_escalation: bool = False
