"""Loss: spikes, and the rise of the smoothed loss above its running minimum."""

from __future__ import annotations

import math

from pydantic import PositiveInt
from torch import nn

from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

SMOOTHING = 0.98


class LossSpike(Monitor):
    """Reads the training loss.

    `loss` is the raw value in nats. `loss_excess` is the rise of the exponential mean (0.98,
    started at the first loss) above its running minimum. Lead times refer to 0.5 nats for 100 steps
    as the definition of divergence. A loss that is not finite is left to `non-finite`.
    """

    name = "loss"
    phase = Phase.GRADIENT
    default_every = 1
    quantities = ("loss", "loss_excess")
    source = "rksp"

    def __init__(self, *, every: PositiveInt | None = None) -> None:
        super().__init__(every=every)
        self._mean: float | None = None
        self._lowest = math.inf

    def bind(self, model: nn.Module) -> str | None:
        """Forget the mean and the minimum."""
        self.reset()
        return None

    def read(self, moment: Moment) -> list[Reading]:
        """Return the loss and its excess."""
        loss = moment.loss
        if loss is None or not math.isfinite(loss):
            return []
        mean = loss if self._mean is None else SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        self._mean, self._lowest = mean, min(self._lowest, mean)
        return [
            self.reading("loss", moment.step, loss),
            self.reading("loss_excess", moment.step, mean - self._lowest, mean=mean),
        ]

    def reset(self) -> None:
        """Forget the mean and the minimum."""
        self._mean, self._lowest = None, math.inf
