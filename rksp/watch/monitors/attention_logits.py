"""Attention logits: their size before the softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rksp.models.anatomy.attention_calls import logit_deviations
from rksp.watch.moment import Phase
from rksp.watch.monitors.attention_watch import LogitMonitor
from rksp.watch.monitors.base import Reading


class AttentionLogits(LogitMonitor):
    """Largest scaled query–key product, `attention_max_logit`, and the logits' spread over keys.

    Kimi K2 clips above τ = 100 (arXiv 2507.20534); runs whose logits exceeded 1e4 all diverged
    (Wortsman et al., 2023, arXiv 2309.14322). `worst_head_logit_std` is the standard deviation over
    visible keys, averaged over queries; the attention logit std of a score is its mean over heads.
    Values are the worst head's. Logits include logit caps and additive masks that do not hide keys
    (position biases).
    """

    name = "attention-logits"
    phase = Phase.GRADIENT
    default_every = 20
    quantities = ("attention_max_logit", "worst_head_logit_std")
    source = "Kimi K2, arXiv 2507.20534; arXiv 2309.14322"

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        """Return the largest logit and the mean spread of each head."""
        deviations = logit_deviations(logits, visible)
        usable = visible.sum(-1) > 1
        return {
            "attention_max_logit": logits.amax((0, 2, 3)),
            "worst_head_logit_std": torch.where(usable, deviations, torch.nan).nanmean((0, 2)),
        }

    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        """Return the worst heads' values."""
        readings = [self.worst_head(name, step, layer, values) for name, values in by_head.items()]
        return [reading for reading in readings if math.isfinite(reading.value)]
