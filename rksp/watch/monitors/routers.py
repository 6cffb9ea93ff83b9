"""Router monitors: entropy, load, similarity and conditioning of a model's routers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import Router, find_anatomy
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading, Rule


def _routers(model: nn.Module) -> tuple[Router, ...]:
    return find_anatomy(model).routers


class RouterMonitor(Monitor):
    """A monitor of router logits, recomputed in float32 from the inputs of the layer of experts.

    The return values of routers differ between models and releases, and fused expert kernels bypass
    them. Padding tokens count like others.
    """

    find, missing = _routers, "the model has no router"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        return [
            router.block.register_forward_pre_hook(partial(self._before, router), with_kwargs=True)
            for router in self.found
        ]

    def read(self, moment: Moment) -> list[Reading]:
        return [
            reading
            for router in self.found
            if router.path in self.seen
            for reading in self.readings_of(router, self.seen[router.path], moment.step)
        ]

    @abstractmethod
    def measure(self, router: Router, logits: Tensor) -> object:
        """Return what to keep of logits `[tokens, experts]`, without tensors of the graph."""

    @abstractmethod
    def readings_of(self, router: Router, measured: Any, step: int) -> list[Reading]:
        """Return the readings of one router."""

    def _before(self, router: Router, module: nn.Module, args: object, kwargs: object) -> None:
        states = first_tensor((args, kwargs))
        if states is None or router.path in self.seen:
            return  # a second pass: another micro-batch, or a recomputed one
        with torch.no_grad():
            self.seen[router.path] = self.measure(router, router.logits(states))


_TOKENS = 8192  # evenly chosen of the first micro-batch


class RouterEntropy(RouterMonitor):
    """Mean over tokens of −Σ p ln p in nats over all experts: `router_entropy`.

    p is the softmax before any top-k. For sigmoid routers (DeepSeek-V3, Llama 4) p are the sigmoids
    over their sum, and the quantity is `router_entropy_sigmoid` (arXiv 2606.28116, section 3). The
    value is in [0, ln E]. It falls as routing specializes, and fast when a few experts win for
    good. `normalized` is the share of ln E. This is not the entropy of the load.
    """

    name = "router-entropy"
    default_every = 10
    quantities: ClassVar = dict.fromkeys(
        ("router_entropy", "router_entropy_sigmoid"),
        Rule(
            direction="down", floor=0.05, warn=0.01, from_start=True, patience=2, advice="backoff"
        ),
    )
    source = "arXiv 2606.28116"

    def measure(self, router: Router, logits: Tensor) -> Tensor:
        sample = logits[:: -(-len(logits) // _TOKENS)]
        entropy = router_entropy(sample, is_sigmoid=router.is_sigmoid)
        return torch.stack([entropy.mean(), entropy.min(), entropy.median()])

    def readings_of(self, router: Router, measured: Tensor, step: int) -> list[Reading]:
        mean, lowest, median = measured.tolist()
        experts = router.weight.shape[0]
        if not math.isfinite(mean) or experts < 2:
            return []
        detail = {"normalized": mean / math.log(experts), "lowest": lowest, "median": median}
        quantity = "router_entropy" + ("_sigmoid" if router.is_sigmoid else "")
        return [self.reading(quantity, step, mean, layer=router.path, **detail)]


_TOKENS_PER_EXPERT = 1000  # routed tokens that a window for dead experts waits for, per expert
# Share of the mean load; below a tenth, experts of healthy small models recovered.
_DEAD_SHARE = 0.02
_DEAD_WINDOWS = 3


class RouterLoad(RouterMonitor):
    """Imbalance of the shares f_i of routed tokens in the first micro-batch.

    `router_max_vio` is (max load − mean)/mean (Wang et al., 2024, arXiv 2408.15664), in [0, E−1];
    `smallest` is the least load over the mean. `router_dead_experts` counts experts below 2 % of
    the mean load in three windows in a row, each of at least 1,000 routed tokens per expert; it is
    read from the third window on. Choices follow the logits and the router's correction, if it has
    one. Limits of groups or capacity are not modeled.
    """

    name = "router-load"
    default_every = 10
    quantities: ClassVar = {
        "router_max_vio": Rule(floor=0.3),
        "router_dead_experts": Rule(direction=None, warn=1.0, from_start=True),
    }
    source = "arXiv 2408.15664"

    def measure(self, router: Router, logits: Tensor) -> Tensor:
        scores = logits
        if router.correction is not None:
            scores = logits.sigmoid() + router.correction.to(logits.dtype)
        return expert_load(scores, router.top_k)

    def readings_of(self, router: Router, measured: Tensor, step: int) -> list[Reading]:
        load = measured.double().cpu()
        if len(load) < 2 or not float(load.sum()):
            return []
        share = load / load.sum()
        detail = {"smallest": float(share.min() * len(share))}
        values = {"router_max_vio": float(share.max() * len(share) - 1)}
        dead = self._dead(router.path, load)
        if dead is not None:
            values["router_dead_experts"] = float(dead)
        return [
            self.reading(quantity, step, value, layer=router.path, **detail)
            for quantity, value in values.items()
        ]

    def _dead(self, path: str, load: Tensor) -> int | None:
        counts, windows = self.past.get(path, (0, []))
        counts = counts + load
        if float(counts.sum()) >= _TOKENS_PER_EXPERT * len(load):
            windows.append(counts < _DEAD_SHARE * counts.mean())
            del windows[:-_DEAD_WINDOWS]
            counts = torch.zeros_like(load)
        self.past[path] = counts, windows
        if len(windows) < _DEAD_WINDOWS:
            return None
        return int(torch.stack(windows).all(0).sum())


class RowMonitor(Monitor):
    """A monitor of the rows of a router's weight, one an expert, after the update."""

    phase = Phase.UPDATE
    default_every = 10
    source = "arXiv 2606.28116"
    find, missing = _routers, "the model has no router"

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        readings = []
        for router in self.found:
            values, detail = self.values(router.rows())
            readings += [
                self.reading(quantity, moment.step, value, layer=router.path, **detail)
                for quantity, value in values.items()
                if math.isfinite(value)
            ]
        return readings

    @abstractmethod
    def values(self, rows: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        """Return the quantities of rows `[experts, width]`, and their detail."""


class RouterSimilarity(RowMonitor):
    """Mean cosine between pairs of router rows: `router_similarity` (arXiv 2606.28116, eq. 7).

    The value is in [−1/(E−1), 1] and near 0 at the start; it rises when a few directions win. A
    router with a zero row has no reading. It is computed from the mean unit row ū as
    (E‖ū‖² − 1)/(E − 1).
    """

    name = "router-similarity"
    quantities: ClassVar = {
        "router_similarity": Rule(floor=0.02, harmless=0.1, warn=0.3, advice="backoff")
    }

    def values(self, rows: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        if len(rows) < 2 or not bool((rows.norm(dim=-1) > 0).all()):
            return {}, {}
        return {"router_similarity": float(mean_cosine(rows))}, {}


def mean_cosine(rows: Tensor) -> Tensor:
    """Return the mean cosine over pairs of different rows of `[rows, width]`, a scalar."""
    count = len(rows)
    units = rows / rows.norm(dim=-1, keepdim=True)
    square: Tensor = units.mean(0).square().sum()
    return (count * square - 1) / (count - 1)


class RouterConditioning(RowMonitor):
    """What remains of a router's rows w_i without their mean w̄ (arXiv 2606.28116, section 3).

    Two definitions are in use, and both are read. `router_cond_ratio` is max ‖w_i − w̄‖ / ‖w̄‖. It
    is about √(E−1) for independent rows and falls towards 0 when a shared mean dominates.
    `router_centered_energy` is Σ‖w_i‖² − E‖w̄‖². For inputs of unit covariance this energy over 2E
    (`concentration`) approximates ln E minus routing entropy.
    """

    name = "router-conditioning"
    quantities: ClassVar = {
        "router_cond_ratio": Rule(direction="down", transform="log", floor=0.2, advice="backoff"),
        "router_centered_energy": Rule(transform="log", floor=0.3, advice="backoff"),
    }

    def values(self, rows: Tensor) -> tuple[dict[str, float], dict[str, float]]:
        mean = rows.mean(0)
        centered = (rows - mean).square().sum(-1)
        energy, size = float(centered.sum()), float(mean.norm())
        values = {"router_centered_energy": energy}
        if size > 0:
            values["router_cond_ratio"] = float(centered.max().sqrt()) / size
        return values, {"concentration": energy / (2 * len(rows))}


def router_entropy(logits: Tensor, *, is_sigmoid: bool = False) -> Tensor:
    """Compute the entropy of the router's probabilities of each token.

    Args:
        logits: `[tokens, experts]`, before any top-k; -inf masks an expert.
        is_sigmoid: Whether p is `sigmoid(z)` divided by its sum over the experts (DeepSeek-V3)
            instead of `softmax(z)`.

    Returns:
        `-sum p ln p` in nats, `[tokens]`; NaN for a token with NaN, +inf or only -inf.
    """
    scores, is_good = _scores(logits)
    if is_sigmoid:  # the softmax of ln sigmoid(z) is sigmoid(z) / sum sigmoid(z)
        scores = torch.nn.functional.logsigmoid(scores)
    logs = torch.log_softmax(scores, -1)  # shifted by the maximum, so a common offset costs nothing
    probabilities = logs.exp()
    # 0 times -inf is NaN, so the term of a masked expert is replaced before the product.
    entropy = -(probabilities * torch.where(probabilities > 0, logs, 0.0)).sum(-1)
    return torch.where(is_good, entropy, float("nan"))


def expert_load(logits: Tensor, top_k: int = 1) -> Tensor:
    """Count the tokens that choose each expert among their `top_k`, of equal ones the first.

    Args:
        logits: As in `router_entropy`. A token that it could not read chooses nothing.
        top_k: Experts chosen per token.

    Returns:
        `[experts]` int64.
    """
    scores, is_good = _scores(logits)
    ordered, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    chosen = (ordered[:, :top_k] > float("-inf")) & is_good[:, None]
    load = torch.zeros(scores.shape[-1], dtype=torch.int64, device=logits.device)
    return load.scatter_add(0, order[:, :top_k].reshape(-1), chosen.reshape(-1).long())


def _scores(logits: Tensor) -> tuple[Tensor, Tensor]:
    scores = at_least_float(logits)
    is_good = torch.isfinite(scores.amax(-1)) & ~torch.isnan(scores).any(-1)
    return torch.where(is_good[:, None], scores, torch.zeros_like(scores)), is_good
