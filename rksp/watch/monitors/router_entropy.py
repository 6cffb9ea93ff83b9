"""Router entropy: how undecided a router is about each token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rksp.kernels.router_statistics import router_statistics
from rksp.models.anatomy.routers import Router
from rksp.watch.moment import Phase
from rksp.watch.monitors.base import Reading
from rksp.watch.monitors.router_states import RouterMonitor

_TOKENS = 8192  # evenly chosen of the first micro-batch


class RouterEntropy(RouterMonitor):
    """Mean over tokens of −Σ p ln p in nats over all experts: `router_entropy`.

    p is the softmax before any top-k. For sigmoid routers (DeepSeek-V3, Llama 4) p are the sigmoids
    over their sum, and the quantity is `router_entropy_sigmoid` (arXiv 2606.28116, section 3). The
    value is in [0, ln E]. It falls as routing specializes, and fast when a few experts win for
    good. `normalized` is the share of ln E. This is not the entropy of the load.
    """

    name = "router-entropy"
    phase = Phase.GRADIENT
    default_every = 10
    quantities = ("router_entropy", "router_entropy_sigmoid")
    source = "arXiv 2606.28116"

    def measure(self, router: Router, logits: Tensor) -> Tensor:
        """Return the mean, lowest and median entropy of up to 8,192 tokens."""
        sample = logits[:: -(-len(logits) // _TOKENS)]
        entropy = router_statistics(sample, is_sigmoid=router.is_sigmoid).entropy
        return torch.stack([entropy.mean(), entropy.min(), entropy.median()])

    def readings_of(self, router: Router, measured: Tensor, step: int) -> list[Reading]:
        """Return the reading of one router."""
        mean, lowest, median = measured.tolist()
        experts = router.weight.shape[0]
        if not math.isfinite(mean) or experts < 2:
            return []
        detail = {"normalized": mean / math.log(experts), "lowest": lowest, "median": median}
        quantity = "router_entropy" + ("_sigmoid" if router.is_sigmoid else "")
        return [self.reading(quantity, step, mean, layer=router.path, **detail)]
