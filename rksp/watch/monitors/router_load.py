"""Router load: how evenly tokens reach the experts."""

from __future__ import annotations

import torch
from torch import Tensor

from rksp.kernels.router_statistics import router_statistics
from rksp.models.anatomy.routers import Router
from rksp.watch.moment import Phase
from rksp.watch.monitors.base import Reading
from rksp.watch.monitors.router_states import RouterMonitor

_TOKENS_PER_EXPERT = 1000  # routed tokens that a window for dead experts waits for, per expert
# Share of the mean load; below a tenth, experts of healthy small models recovered.
_DEAD_SHARE = 0.02
_DEAD_WINDOWS = 3


class RouterLoad(RouterMonitor):
    """Imbalance of the shares f_i of routed tokens in the first micro-batch.

    `router_max_vio` is (max load − mean)/mean (Wang et al., 2024, arXiv 2408.15664), in [0, E−1].
    The detail gives Gini index, coefficient of variation and entropy of the load over ln E.
    `router_dead_experts` counts experts below 2 % of the mean load in three windows in a row, each
    of at least 1,000 routed tokens per expert; it is read from the third window on. Choices follow
    the logits and the router's correction, if it has one. Limits of groups or capacity are not
    modeled.
    """

    name = "router-load"
    phase = Phase.GRADIENT
    default_every = 10
    quantities = ("router_max_vio", "router_dead_experts")
    source = "arXiv 2408.15664"

    def reset(self) -> None:
        """Forget the counts of all windows."""
        self._counts: dict[str, Tensor] = {}
        self._windows: dict[str, list[Tensor]] = {}

    def measure(self, router: Router, logits: Tensor) -> Tensor:
        """Return the number of tokens of each expert."""
        scores = logits
        if router.correction is not None:
            scores = logits.sigmoid() + router.correction.to(logits.dtype)
        return router_statistics(scores, router.top_k).load

    def readings_of(self, router: Router, measured: Tensor, step: int) -> list[Reading]:
        """Return the reading of one router's imbalance and, once known, of its dead experts."""
        load = measured.double().cpu()
        if len(load) < 2 or not float(load.sum()):
            return []
        share = load / load.sum()
        entropy = torch.special.entr(share).sum() / torch.tensor(len(share)).log()
        ranks = torch.arange(1, len(share) + 1, dtype=share.dtype)
        gini = (2 * (ranks * share.sort().values).sum() - (len(share) + 1)) / len(share)
        detail = {
            "gini": float(gini),
            "variation": float(share.std(correction=0) / share.mean()),
            "load_entropy": float(entropy),
            "smallest": float(share.min() * len(share)),
        }
        values = {"router_max_vio": float(share.max() * len(share) - 1)}
        dead = self._dead(router.path, load)
        if dead is not None:
            values["router_dead_experts"] = float(dead)
        return [
            self.reading(quantity, step, value, layer=router.path, **detail)
            for quantity, value in values.items()
        ]

    def _dead(self, path: str, load: Tensor) -> int | None:
        counts = self._counts.get(path, 0) + load
        windows = self._windows.setdefault(path, [])
        if float(counts.sum()) >= _TOKENS_PER_EXPERT * len(load):
            windows.append(counts < _DEAD_SHARE * counts.mean())
            del windows[:-_DEAD_WINDOWS]
            counts = torch.zeros_like(load)
        self._counts[path] = counts
        if len(windows) < _DEAD_WINDOWS:
            return None
        return int(torch.stack(windows).all(0).sum())
