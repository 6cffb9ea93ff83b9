"""The base class of monitors, their readings, and the alarms that rules raise on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from pydantic import PositiveInt
from torch import nn
from torch.utils.hooks import RemovableHandle

from rksp.watch.moment import Moment, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value of one quantity.

    Attributes:
        monitor: Name of the monitor.
        quantity: Name of the quantity, in the field's term (`stable_rank`).
        step: The step that it describes.
        layer: Path of the module; empty for the whole model.
        value: The layer's value; with heads, the value of the worst head.
        detail: Further numbers: median over heads, number of flagged heads, …
    """

    monitor: str
    quantity: str
    step: int
    layer: str
    value: float
    detail: Mapping[str, float] = field(default_factory=dict)


class Monitor(ABC):
    """Observes a run and never changes it: a watched run is bitwise equal to an unwatched one.

    The watch calls `bind` once. At every sampled step it calls `arm` before the first micro-batch's
    forward pass and `read` in `phase`; hooks are removed after that pass's backward. A monitor
    draws no random numbers from the global generators and keeps no tensor of the graph alive.

    Attributes:
        name: Unique name in tables and on the command line.
        phase: When `read` is called.
        default_every: Steps between two readings, unless the user gives another number.
        quantities: Names of its quantities, without the window that some have as a suffix.
        source: The publication that the monitor comes from.
    """

    name: ClassVar[str]
    phase: ClassVar[Phase] = Phase.GRADIENT
    default_every: ClassVar[int]
    quantities: ClassVar[tuple[str, ...]]
    source: ClassVar[str]

    def __init__(self, *, every: PositiveInt | None = None) -> None:
        self.every = every or self.default_every

    @abstractmethod
    def bind(self, model: nn.Module) -> str | None:
        """Find what to measure; return why this model cannot be measured, or None."""

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Register the hooks of one sampled step; none by default."""
        return ()

    @abstractmethod
    def read(self, moment: Moment) -> list[Reading]:
        """Return the readings of a sampled step, without what could not be measured."""

    def reading(
        self, quantity: str, step: int, value: float, *, layer: str = "", **detail: float
    ) -> Reading:
        """Make a reading of this monitor; `layer` and `detail` as in `Reading`."""
        return Reading(
            monitor=self.name,
            quantity=quantity,
            step=step,
            layer=layer,
            value=value,
            detail=detail,
        )

    def reset(self) -> None:
        """Forget earlier weights and values, after something else has moved the weights."""
        return None


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
