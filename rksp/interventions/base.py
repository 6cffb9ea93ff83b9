"""The contract of an intervention: what may change a run, and the record of having done so."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.moment import Moment
from rksp.monitors.alarm import Alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing an intervention did.

    Attributes:
        intervention, step: Who and when.
        what: A sentence without numbers that repeat at every step.
        seconds: What it cost; the only field that differs between two equal runs.
        detail: Numbers: the factor, how many heads, the penalty, …
        moved_weights: Whether weights are now others than the optimizer left them. Monitors that
            compare weights over time start anew.
    """

    intervention: str
    step: int
    what: str
    seconds: float
    detail: Mapping[str, float] = field(default_factory=dict)
    moved_weights: bool = False


class Intervention(ABC):
    """Changes a run, and logs it. Switched on alone or combined, called in the order given.

    Life: `bind` once before the optimizer's first step; then at every step `arm` before the
    forward pass, `penalty` after it (of every micro-batch), `before_update` after backward
    (gradients unscaled, unclipped), `after_update` after the optimizer's step. `on_alarm` is
    called for every new alarm at the end of the step that raised it.

    Attributes:
        name: Unique, as in tables and on the command line.
        actions: What it did so far.
        rate_scale: Factor on the recipe's learning rate, read by the loop at every step.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.rate_scale = 1.0

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Finds what it acts on.

        Raises:
            NotCovered: The model has nothing to act on.
        """
        return None

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Hooks for this step's forward and backward passes; removed by the loop afterwards."""
        return ()

    def penalty(self, moment: Moment) -> Tensor | None:
        """A scalar added to the loss before backward; never part of the recorded loss."""
        return None

    def before_update(self, moment: Moment) -> None:
        """May change gradients."""
        return None

    def after_update(self, moment: Moment) -> None:
        """May change weights."""
        return None

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        """May react."""
        return None
