"""Attention logits: how large they are, before the softmax makes them harmless to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from rksp.moment import Phase
from rksp.monitors.attention_calls import LogitMonitor
from rksp.monitors.base import Reading


class AttentionLogits(LogitMonitor):
    """Largest scaled query–key product: `attention_max_logit`; and their spread over keys.

    Kimi K2 clips above τ = 100 (arXiv 2507.20534); runs whose logits went above 1e4 all diverged
    (Wortsman et al., 2023, arXiv 2309.14322). `attention_logit_std` is the standard deviation over
    visible keys, averaged over queries. Values are the worst head's; logits carry additive masks
    that do not hide (position biases) and caps.
    """

    name: ClassVar[str] = "attention-logits"
    phase: ClassVar[Phase] = Phase.GRADIENT
    default_every: ClassVar[int] = 20
    quantities: ClassVar[tuple[str, ...]] = ("attention_max_logit", "attention_logit_std")
    source: ClassVar[str] = "Kimi K2, arXiv 2507.20534; arXiv 2309.14322"

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        count = visible.sum(-1).clamp(min=1)
        clean = logits.masked_fill(~visible, 0.0)
        mean = clean.sum(-1, keepdim=True) / count.unsqueeze(-1)
        spread = (((clean - mean).square() * visible).sum(-1) / count).sqrt()
        usable = visible.sum(-1) > 1
        return {
            "attention_max_logit": logits.amax((0, 2, 3)),
            "attention_logit_std": torch.where(usable, spread, torch.nan).nanmean((0, 2)),
        }

    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        readings = []
        for quantity, values in by_head.items():
            largest, head = values.max(0)
            if math.isfinite(float(largest)):
                detail = {"median": float(values.median()), "head": float(head)}
                readings.append(
                    Reading(
                        monitor=self.name,
                        quantity=quantity,
                        step=step,
                        layer=layer,
                        value=float(largest),
                        detail=detail | {"heads": float(len(values))},
                    )
                )
        return readings
