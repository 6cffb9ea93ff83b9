"""Multiple maxima: rows of attention that attain their largest logit more than once."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rksp.watch.moment import Phase
from rksp.watch.monitors.attention_watch import LogitMonitor
from rksp.watch.monitors.base import Reading

_NEAR = 1e-3


class MultiMaximum(LogitMonitor):
    """Share of rows with more than one key within 1e-3 of the row's maximum: `multi_max_share`.

    Low-precision fused attention then sums several probabilities of exactly one. Its rounding
    becomes one-sided, and the error of the query weights accumulates (arXiv 2510.04212). Rows that
    see fewer than two keys do not count. The value is the worst head's.
    """

    name = "multi-maximum"
    phase = Phase.GRADIENT
    default_every = 20
    quantities = ("multi_max_share",)
    source = "arXiv 2510.04212"

    def measure(self, logits: Tensor, visible: Tensor) -> Mapping[str, Tensor]:
        """Return the share of such rows for each head."""
        usable = visible.sum(-1) > 1
        near = (logits >= logits.amax(-1, keepdim=True) - _NEAR) & visible
        tied = (near.sum(-1) > 1) & usable
        return {"share": tied.sum((0, 2)) / usable.sum((0, 2)).clamp(min=1)}

    def readings_of(self, layer: str, by_head: Mapping[str, Tensor], step: int) -> list[Reading]:
        """Return the worst head's share."""
        return [self.worst_head("multi_max_share", step, layer, by_head["share"])]
