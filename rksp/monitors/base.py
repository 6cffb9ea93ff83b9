"""The contract of a monitor: what it looks at, when, and what it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import PositiveInt
from torch import nn
from torch.utils.hooks import RemovableHandle

from rksp.moment import Moment, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value of one quantity.

    Attributes:
        monitor: Name of the monitor.
        quantity: What was measured, in the field's term (`stable_rank`).
        step: The step it describes.
        layer: Path of the module; empty for the whole model.
        value: The layer's value: the worst head's where there are heads.
        detail: Further numbers: median over heads, heads flagged, …
    """

    monitor: str
    quantity: str
    step: int
    layer: str
    value: float
    detail: Mapping[str, float] = field(default_factory=dict)


class Monitor(ABC):
    """Observes a run and never changes it: a watched run is bitwise equal to an unwatched one.

    Life: `bind` once; then at every sampled step `arm` before the first micro-batch's forward
    pass (its hooks are removed after that pass's backward), and `read` in `phase`. A monitor draws
    no random numbers from the global generators and leaves no tensor of the graph alive.

    Attributes:
        name: Unique, as in tables and on the command line.
        phase: When `read` is called.
        default_every: Steps between two readings unless the user says otherwise.
        quantities: What its readings may be named, without the window that some have as a suffix.
        source: Whose idea it is.
    """

    name: ClassVar[str]
    phase: ClassVar[Phase]
    default_every: ClassVar[int]
    quantities: ClassVar[tuple[str, ...]]
    source: ClassVar[str]

    def __init__(self, *, every: PositiveInt | None = None) -> None:
        self.every = every or self.default_every

    @abstractmethod
    def bind(self, model: nn.Module) -> str | None:
        """Finds what it measures; returns why nothing can be measured on this model, or None."""

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Registers the hooks of one sampled step; none by default."""
        return ()

    @abstractmethod
    def read(self, moment: Moment) -> list[Reading]:
        """The readings of a sampled step; what could not be measured is left out."""

    def reading(
        self, quantity: str, step: int, value: float, *, layer: str = "", **detail: float
    ) -> Reading:
        """A reading of this monitor; `layer` and `detail` as in `Reading`."""
        return Reading(
            monitor=self.name,
            quantity=quantity,
            step=step,
            layer=layer,
            value=value,
            detail=detail,
        )

    def reset(self) -> None:
        """Forgets what it compares with, after something else has moved the weights."""
        return None
