"""Output log Z: drift of the logits as a whole, which the loss does not see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.errors import NotCovered
from rksp.moment import Moment, Phase
from rksp.monitors.base import Monitor, Reading

POSITIONS = 512  # of the first micro-batch, evenly spread


class OutputLogZ(Monitor):
    """Mean of log Z = log Σ exp(logits) over tokens, in nats: `output_log_z`.

    Cross-entropy does not change when all logits move together, so they may drift until low
    precision breaks; the z-loss 1e-4 log²Z holds them (PaLM, Chowdhery et al., 2022; Wortsman et
    al., 2023, arXiv 2309.14322, section 3.1.2). `p99` is the 99th percentile of |log Z|.
    """

    name = "output-log-z"
    phase = Phase.GRADIENT
    default_every = 10
    quantities = ("output_log_z",)
    source = "PaLM, arXiv 2204.02311; arXiv 2309.14322"

    def __init__(
        self, *, every: PositiveInt | None = None, positions: PositiveInt = POSITIONS
    ) -> None:
        super().__init__(every=every)
        self.positions = positions
        self._log_z: Tensor | None = None

    def bind(self, model: nn.Module) -> str | None:
        self._log_z = None
        return None  # what a model returns is known when it returns it

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        self._log_z = None
        return [model.register_forward_hook(self._after)]

    def read(self, moment: Moment) -> list[Reading]:
        log_z, self._log_z = self._log_z, None
        if log_z is None:
            return []
        mean, p99 = torch.stack([log_z.mean(), log_z.abs().quantile(0.99)]).tolist()
        return [self.reading("output_log_z", moment.step, mean, p99=p99)]

    def _after(self, module: nn.Module, args: tuple, output: object) -> None:
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            raise NotCovered("the model returns no logits (a fused loss keeps them to itself)")
        rows = logits.detach().flatten(0, -2)
        stride = -(-len(rows) // self.positions)
        self._log_z = rows[::stride].float().logsumexp(-1)
