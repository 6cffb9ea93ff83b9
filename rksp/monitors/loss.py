"""Loss: spikes, and the smoothed loss over its running minimum."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import nn

from rksp.moment import Moment, Phase
from rksp.monitors.base import Monitor, Reading

SMOOTHING = 0.98


class LossSpike(Monitor):
    """Reads the training loss.

    `loss` is the raw value in nats; `loss_excess` how far the exponential mean (0.98, started at
    the first loss) stands above its running minimum: 0.5 nats for 100 steps is the definition of
    divergence that lead times refer to. A loss that is not finite is left to `non-finite`.
    """

    name: ClassVar[str] = "loss"
    phase: ClassVar[Phase] = Phase.GRADIENT
    default_every: ClassVar[int] = 1
    quantities: ClassVar[tuple[str, ...]] = ("loss", "loss_excess")
    source: ClassVar[str] = "ours"

    def __init__(self, *, every: int | None = None) -> None:
        super().__init__(every=every)
        self._mean: float | None = None
        self._lowest = math.inf

    def bind(self, model: nn.Module) -> str | None:
        self.reset()
        return None

    def read(self, moment: Moment) -> list[Reading]:
        loss = moment.loss
        if loss is None or not math.isfinite(loss):
            return []
        mean = loss if self._mean is None else SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        self._mean, self._lowest = mean, min(self._lowest, mean)
        return [
            self._reading("loss", moment.step, loss, {}),
            self._reading("loss_excess", moment.step, mean - self._lowest, {"mean": mean}),
        ]

    def reset(self) -> None:
        self._mean, self._lowest = None, math.inf

    def _reading(self, quantity: str, step: int, value: float, detail: dict) -> Reading:
        return Reading(
            monitor=self.name, quantity=quantity, step=step, layer="", value=value, detail=detail
        )
