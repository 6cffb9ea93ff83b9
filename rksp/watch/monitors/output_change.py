"""Output change: how far a step moves the outputs of every matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import PositiveInt
from torch import nn
from torch.utils.hooks import RemovableHandle

from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading
from rksp.watch.output_change import SHARES, OutputChange


class OutputChangeMonitor(Monitor):
    """‖ΔW x‖ / ‖W x‖ of the step, on `tokens` inputs x of every matrix (`OutputChange`).

    `output_change` is a matrix's share; `median_output_change` that of the whole model, the median
    over its matrices. It is the aligned response of the score, read in the run. With step clip it
    is the share before the clip, and costs nothing more.
    """

    name = "output-change"
    phase = Phase.UPDATE
    default_every = 1
    quantities = ("output_change", "median_output_change")
    source = "rksp's own"

    def __init__(self, *, every: PositiveInt | None = None, tokens: PositiveInt = 64) -> None:
        super().__init__(every=every)
        self._tokens = tokens

    def bind(self, model: nn.Module) -> str | None:
        """Find the weights that multiply."""
        self._outputs = OutputChange(self._tokens)
        self._outputs.bind(model)
        self._step = -1
        return None if self._outputs.uses else "no matrix is trained"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Sample inputs and outputs of the forward pass."""
        self._step += self.every
        return self._outputs.arm(self._step)

    def read(self, moment: Moment) -> list[Reading]:
        """Return the share of every matrix that was used, and their median."""
        names, shares = moment.shared.get(SHARES) or (self._outputs.names, self._outputs.shares())
        found = {
            name: share
            for name, share in zip(names, shares.tolist(), strict=True)
            if not math.isnan(share)
        }
        if not found:
            return []
        middle = sorted(found.values())[len(found) // 2]
        return [
            *(self.reading("output_change", moment.step, v, layer=k) for k, v in found.items()),
            self.reading("median_output_change", moment.step, middle),
        ]
