"""Describe a moment of a training step for monitors, interventions and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.models.anatomy.attention_calls import AttentionTap

Handle = RemovableHandle | AttentionTap  # what acts until it is removed


class Phase(StrEnum):
    """The two moments of a training step at which something can be read.

    Attributes:
        GRADIENT: After backward, unscaled and before clipping. Gradients are complete, and weights
            are still those of the forward pass.
        UPDATE: After the optimizer's step. Weights have moved, and gradients are still there.
    """

    GRADIENT = "gradient"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What a step gave when it was computed again.

    Attributes:
        gradients: Of the parameters that had one, in the order of the model; unscaled.
        moved: By how much the loss of this process differs from the step's own, relative to it.
    """

    gradients: Sequence[Tensor]
    moved: float


@dataclass(slots=True, kw_only=True)
class Moment:
    """The state of a training step that monitors, interventions and faults can read.

    Attributes:
        step: Optimizer step, from zero.
        model: The trained module, unwrapped.
        optimizer: Its optimizer; None if the training loop does not pass it on.
        loss: Training loss in nats, mean over the step's micro-batches; None if unknown.
        learning_rate: Learning rate of this step; None if unknown.
        repeat: Computes the step's gradients again from the same batches and random numbers, and
            leaves the step's own in place; None in a loop that cannot do so.
        shared: Results of a monitor that others of the same phase need too, by name.
    """

    step: int
    model: nn.Module
    optimizer: Optimizer | None = None
    loss: float | None = None
    learning_rate: float | None = None
    repeat: Callable[[], Repeat] | None = field(default=None, repr=False, compare=False)
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
