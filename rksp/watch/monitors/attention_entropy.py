"""Attention entropy: do heads still attend to more than one key?"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rksp.models.anatomy.attention_calls import attention_entropies
from rksp.watch.moment import Phase
from rksp.watch.monitors.attention_watch import LogitMonitor
from rksp.watch.monitors.base import Reading

_COLLAPSED = 0.01


class AttentionEntropy(LogitMonitor):
    """H / ln(visible keys) of the softmax rows, averaged over queries: `attention_entropy`.

    Its collapse accompanies divergence (Zhai et al., 2023, arXiv 2303.06296). The value is the
    lowest head's. Heads that attend to the first token alone are low in healthy models too.
    `collapsed` therefore counts the heads below 0.01, and `new_collapsed` those that were not at
    the first reading.
    """

    name = "attention-entropy"
    phase = Phase.GRADIENT
    default_every = 20
    quantities = ("attention_entropy",)
    source = "arXiv 2303.06296"

    def reset(self) -> None:
        """Forget which heads had collapsed at the first reading."""
        self._first: dict[str, Tensor] = {}

    def bind(self, model):
        """Find the attention layers."""
        self.reset()
        return super().bind(model)

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        """Return the mean entropy of each head."""
        entropy = attention_entropies(logits, visible)
        usable = visible.sum(-1) > 1
        return {"entropy": torch.where(usable, entropy, torch.nan).nanmean((0, 2))}

    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        """Return the lowest head's entropy and the counts of collapsed heads."""
        values = by_head["entropy"]
        if not bool(torch.isfinite(values).all()):
            return []
        collapsed = (values < _COLLAPSED).cpu()
        first = self._first.setdefault(layer, collapsed)
        lowest, head = values.min(0)
        detail = {
            "mean": float(values.mean()),
            "median": float(values.median()),
            "collapsed": float(collapsed.sum()),
            "new_collapsed": float((collapsed & ~first).sum()),
            "head": float(head),
            "heads": float(len(values)),
        }
        value = max(0.0, float(lowest))
        return [self.reading("attention_entropy", step, value, layer=layer, **detail)]
