"""The base class of interventions, and the record of their actions."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.option_lines import Options
from rksp.watch.moment import Handle, Moment
from rksp.watch.monitors.base import Alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action of an intervention.

    Attributes:
        intervention: Name of the intervention.
        step: Step of the action.
        what: A sentence without numbers, equal for equal actions.
        detail: Numbers: the factor, the number of heads, the penalty, …
        moved_weights: True if the weights now differ from the optimizer's result. Monitors that
            compare weights over time then start anew.
    """

    intervention: str
    step: int
    what: str
    detail: Mapping[str, float] = field(default_factory=dict)
    moved_weights: bool = False


@dataclass(eq=False)
class Intervention(Options, ABC):
    """Changes a run and records its actions. Interventions combine and act in the given order.

    Its options are its fields.

    The loop calls `bind` once before the optimizer's first step. At every step it calls `arm`
    before the forward pass, `penalty` after the forward pass of every micro-batch, `before_update`
    after backward (gradients unscaled and unclipped), and `after_update` after the optimizer's
    step. It calls `on_alarm` for every new alarm at the end of the step that raised it.

    Attributes:
        name: Unique name in tables and on the command line.
        actions: The actions so far.
        rate_scale: Factor on the recipe's learning rate, read by the loop at every step.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.actions: list[Action] = []
        self.rate_scale = 1.0

    def record(
        self, moment: Moment, what: str, *, moved_weights: bool = False, **detail: float
    ) -> None:
        """Append an action; the arguments are fields of `Action`."""
        self.actions.append(
            Action(
                intervention=self.name,
                step=moment.step,
                what=what,
                detail=detail,
                moved_weights=moved_weights,
            )
        )

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Find the parts of the model to act on.

        Raises:
            NotCovered: The model has no such part.
        """

    def arm(self, moment: Moment) -> Sequence[Handle]:
        """Return hooks for this step's forward and backward passes; the loop removes them."""
        return ()

    def penalty(self, moment: Moment) -> Tensor | None:
        """Return a scalar to add to the loss before backward but not to the recorded loss."""
        return None

    def before_update(self, moment: Moment) -> None:
        """Change gradients, or do nothing."""

    def after_update(self, moment: Moment) -> None:
        """Change weights, or do nothing."""

    def closing(self) -> str | None:
        """Return a sentence on what it did in the whole run, for the end of it, or None."""
        return None

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        """React to an alarm, or do nothing."""
