"""Describe a moment of a training step for monitors, interventions and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torch import nn
from torch.optim import Optimizer


class Phase(StrEnum):
    """The two moments of a training step at which something can be read.

    Attributes:
        GRADIENT: After backward, unscaled and before clipping. Gradients are complete, and weights
            are still those of the forward pass.
        UPDATE: After the optimizer's step. Weights have moved, and gradients are still there.
    """

    GRADIENT = "gradient"
    UPDATE = "update"


@dataclass(slots=True, kw_only=True)
class Moment:
    """The state of a training step that monitors, interventions and faults can read.

    Attributes:
        step: Optimizer step, from zero.
        model: The trained module, unwrapped.
        optimizer: Its optimizer; None if the training loop does not pass it on.
        loss: Training loss in nats, mean over the step's micro-batches; None if unknown.
        learning_rate: Learning rate of this step; None if unknown.
        shared: Results of a monitor that others of the same phase need too, by name.
    """

    step: int
    model: nn.Module
    optimizer: Optimizer | None = None
    loss: float | None = None
    learning_rate: float | None = None
    shared: dict[str, object] = field(default_factory=dict, repr=False, compare=False)
