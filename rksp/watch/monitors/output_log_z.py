"""Output log Z: a drift of all logits together, which does not change the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import NotCovered
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

POSITIONS = 512  # of the first micro-batch, evenly spread


class OutputLogZ(Monitor):
    """Mean of log Z = log Σ exp(logits) over tokens, in nats: `output_log_z`.

    Cross-entropy does not change when all logits move together, so they may drift until low
    precision fails. The z-loss 1e-4 log²Z keeps them near zero (PaLM, Chowdhery et al., 2022;
    Wortsman et al., 2023, arXiv 2309.14322, section 3.1.2). `p99` is the 99th percentile of |log
    Z|.
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
        """Accept every model, because its outputs are not known yet."""
        self._log_z = None
        return None

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Put a hook on the model's output."""
        self._log_z = None
        return [model.register_forward_hook(self._after)]

    def read(self, moment: Moment) -> list[Reading]:
        """Return the mean of log Z."""
        log_z, self._log_z = self._log_z, None
        if log_z is None:
            return []
        mean, p99 = torch.stack([log_z.mean(), log_z.abs().quantile(0.99)]).tolist()
        return [self.reading("output_log_z", moment.step, mean, p99=p99)]

    def _after(self, module: nn.Module, args: tuple, output: object) -> None:
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            raise NotCovered("the model returns no logits (as with a fused loss)")
        rows = logits.detach().flatten(0, -2)
        stride = -(-len(rows) // self.positions)
        self._log_z = rows[::stride].float().logsumexp(-1)
