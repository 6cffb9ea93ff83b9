"""Gradient norm: of the whole model and of every block."""

from __future__ import annotations

import math

from torch import nn

from rksp.watch.groups import gradient_norms, parameter_groups, sums_of_squares
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading


class GradientNorm(Monitor):
    """Euclidean norm of the gradients before clipping, of the model and of every block.

    The quantities are `gradient_norm` and `block_gradient_norm`.

    Sharded gradients count as whole: squares are summed per shard and over the ranks that hold
    them. The model's norm carries the largest block's share of the square as `top_share`. A norm
    that is not finite is left to `non-finite`, because under fp16 the loss scaler provokes them.
    The rules are a robust z of the logarithm, and ten times the median for three steps. A block's
    norm must leave its baseline further, because blocks take turns in learning.
    """

    name = "gradient-norm"
    phase = Phase.GRADIENT
    default_every = 1
    quantities = ("gradient_norm", "block_gradient_norm")
    source = "ZClip, arXiv 2504.02507"

    def bind(self, model: nn.Module) -> str | None:
        """Group the parameters by block."""
        self._groups = parameter_groups(model)
        return None if self._groups else "no parameter is trained"

    def read(self, moment: Moment) -> list[Reading]:
        """Return the norms that are finite."""
        groups = {
            name: grads
            for name, params in self._groups.items()
            if (grads := [p.grad for p in params if p.grad is not None])
        }
        if not groups:
            return []
        squares = sums_of_squares(list(groups.values()), gradient_norms(moment)).tolist()
        total = sum(squares)
        top = max(squares) / total if 0 < total < math.inf else 1.0
        step = moment.step
        readings = [
            self.reading("gradient_norm", step, _root(total), top_share=top),
            *(
                self.reading("block_gradient_norm", step, _root(square), layer=name)
                for name, square in zip(groups, squares, strict=True)
            ),
        ]
        return [reading for reading in readings if math.isfinite(reading.value)]


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan
