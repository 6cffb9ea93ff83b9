"""The base class of monitors, their readings, and the rules by which readings raise alarms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt
from torch import nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.option_lines import Options
from rksp.watch.moment import Moment, Phase

_TINY = 1e-30  # the smallest argument of a logarithm


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
        text: The alarm in words; empty where the numbers say all.
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
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How readings of one quantity become alarms: which change is bad, and how large it must be.

    Attributes:
        direction: The bad side; None if the quantity has only hard limits.
        transform: Logarithm for positive, heavy-tailed values.
        floor: The smallest change worth an alarm, in transformed units; added to the spread.
        harmless: Values on the good side of this one never raise an alarm by their change.
        warn: Hard limit of a warning on the value itself, on the bad side (`up` if there is none).
            It does not apply to a series that starts beyond it, unless `from_start` is set.
        critical: Hard limit of a critical alarm, on the same side.
        from_start: Whether `warn` also applies to a series that starts beyond it. The warning of
            such a series does not become critical by lasting: back-off would lower a rate that is
            not at fault.
        patience: Number of samples in a row beyond a hard limit that raise its alarm.
        ratio: Alarm beyond this multiple (or fraction, if down) of the baseline's median, three
            samples in a row and outside of the usual spread, with `ratio_severity`.
        ratio_severity: The severity of that alarm.
        advice: The intervention that the literature uses at such an alarm, or empty.
    """

    direction: Literal["up", "down", "both"] | None = "up"
    transform: Literal["identity", "log"] = "identity"
    floor: float = 0.0
    harmless: float | None = None
    warn: float | None = None
    critical: float | None = None
    from_start: bool = False
    patience: int = 1
    ratio: float | None = None
    ratio_severity: Severity = Severity.WARN
    advice: str = ""

    def __str__(self) -> str:
        sign = "≤" if self.direction == "down" else "≥"
        parts = []
        if self.direction is not None:
            side = {"up": "rises from", "down": "falls from", "both": "leaves"}[self.direction]
            scale = " in ln" if self.transform == "log" else ""
            word = "above" if self.direction == "down" else "below"
            spared = "" if self.harmless is None else f", harmless {word} {self.harmless:g}"
            parts.append(f"{side} its baseline (floor {self.floor:g}{scale}{spared})")
        if self.ratio is not None:
            word = "less than 1 /" if self.direction == "down" else "more than"
            parts.append(f"{word} {self.ratio:g} times the median ({self.ratio_severity})")
        for limit, severity in ((self.warn, Severity.WARN), (self.critical, Severity.CRITICAL)):
            if limit is not None:
                early = ", from the start" if self.from_start else ""
                parts.append(f"{sign} {limit:g} ({severity}){early}")
        if self.patience > 1:
            parts.append(f"{self.patience} in a row")
        return "; ".join(parts) or "none"

    def transformed(self, value: float) -> float:
        """Return the value in the units of the baseline."""
        return math.log(max(value, _TINY)) if self.transform == "log" else value

    def restored(self, value: float) -> float:
        """Invert `transformed`."""
        return math.exp(value) if self.transform == "log" else value

    def is_beyond(self, value: float, limit: float) -> bool:
        """Return whether a value reached a limit."""
        if self.direction == "both":
            value = abs(value)
        return value <= limit if self.direction == "down" else value >= limit

    def ratio_to(self, value: float, median: float) -> float:
        """Return how many times worse than the median a positive value is."""
        low, high = (value, median) if self.direction == "down" else (median, value)
        return high / max(low, _TINY)


NO_RULE = Rule(direction=None)


@dataclass(eq=False)
class Monitor(Options, ABC):
    """Observes a run and never changes it: a watched run is bitwise equal to an unwatched one.

    The watch calls `bind` once. At every sampled step it calls `arm` before the first micro-batch's
    forward pass and `read` in `phase`, and `forget` before the one and after the other; hooks are
    removed after that pass's backward. A monitor draws no random numbers from the global generators
    and keeps no tensor of the graph alive.

    Its options are its fields.

    Attributes:
        name: Unique name in tables and on the command line.
        phase: When `read` is called.
        default_every: Steps between two readings, unless the user gives another number.
        quantities: The rule of each of its quantities, by name without the window that some have as
            a suffix. Hard limits are published ones if there are any, and otherwise defaults that
            healthy small runs do not reach.
        source: The publication that the monitor comes from.
        find: Returns the parts of a model that are measured, kept as `found`.
        missing: Why a model without such parts cannot be measured.
        every: Steps between two readings.
        seen: What the hooks of the sampled step saw, by place.
        past: What is kept between readings, by place.
    """

    name: ClassVar[str]
    phase: ClassVar[Phase] = Phase.GRADIENT
    default_every: ClassVar[int]
    quantities: ClassVar[Mapping[str, Rule]]
    source: ClassVar[str]
    find: ClassVar[Callable[[nn.Module], Any]] = lambda model: True
    missing: ClassVar[str] = ""

    every: PositiveInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.every = self.every or self.default_every

    def bind(self, model: nn.Module) -> str | None:
        """Find what to measure; return why this model cannot be measured, or None."""
        self.found = type(self).find(model)
        self.forget()
        self.reset()
        return None if self.found else self.missing

    def forget(self) -> None:
        """Forget what the hooks of the last sampled step saw."""
        self.seen: dict[Any, Any] = {}

    def reset(self) -> None:
        """Forget earlier weights and values, after something else has moved the weights."""
        self.past: dict[Any, Any] = {}

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
            monitor=self.name, quantity=quantity, step=step, layer=layer, value=value, detail=detail
        )
