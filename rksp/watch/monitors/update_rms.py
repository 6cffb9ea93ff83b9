"""Update RMS: how far the second moment lags behind the gradient, and how large updates are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.watch.groups import local, parameter_groups
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

SAMPLES = 1024  # entries per tensor: a root mean square of normal entries is then known to 2 %
NEAR_EPSILON = 10.0  # a coordinate this close to Adam's epsilon hardly moves


class UpdateRMS(Monitor):
    """Reads the state of an Adam-like optimizer after its step.

    Each block's value is its worst tensor's (for `epsilon_share`, that of all tensors together):

    - `rms_t` = √mean(g² / max(v̂, ε²)), the quantity of StableAdamW (Wortsman et al., 2023, arXiv
      2304.13013, algorithm 2). Above one, the second moment underestimates the gradient; loss
      spikes were seen 1 to 8 steps later. g is the gradient that the optimizer used.
    - `update_rms` = RMS(m̂ / (√v̂ + ε)), the step in units of the learning rate, before decay.
    - `epsilon_share`: share of coordinates with 0 < √v̂ < 10 ε, whose updates vanish (Wortsman et
      al., 2023b, arXiv 2309.14322); a coordinate that never had a gradient is not counted.
    - `starved_share` of the whole model: the least of its blocks' shares of the coordinates with
      √v̂ < 10 ε among those that ever had a gradient. Rare tokens starve rows of an embedding in
      healthy runs; every block starves only if ε is too large.

    Tensors of more than `samples` entries are measured on that many, evenly spread. Of sharded
    tensors each rank measures its own part.
    """

    name = "update-rms"
    phase = Phase.UPDATE
    default_every = 4
    quantities = ("rms_t", "update_rms", "epsilon_share", "starved_share")
    source = "StableAdamW, arXiv 2304.13013; arXiv 2309.14322"

    def __init__(self, *, every: PositiveInt | None = None, samples: PositiveInt = SAMPLES) -> None:
        super().__init__(every=every)
        self.samples = samples

    def bind(self, model: nn.Module) -> str | None:
        """Group the parameters by block."""
        self._groups = parameter_groups(model)
        return None if self._groups else "no parameter is trained"

    def read(self, moment: Moment) -> list[Reading]:
        """Return the quantities of every block, and `starved_share` of the model.

        Raises:
            NotCovered: The optimizer keeps no second moment.
        """
        settings = _adam_settings(moment.optimizer)
        state: dict[Any, Any] = definite(moment.optimizer).state
        for part in getattr(moment.optimizer, "parts", ()):
            state = {**state, **part.state}
        owners, tensors = [], []
        for name, params in self._groups.items():
            for p in params:
                if p in settings and p.grad is not None and "exp_avg_sq" in state.get(p, {}):
                    owners.append(name)
                    tensors.append((p, state[p], settings[p]))
        if not tensors:
            return []
        found = self._measure(tensors)
        readings, shares = [], []
        for name in dict.fromkeys(owners):
            rows = [i for i, owner in enumerate(owners) if owner == name]
            for quantity in ("rms_t", "update_rms"):
                values = sorted(found[quantity][i] for i in rows)
                median = values[len(values) // 2]
                readings.append(
                    self.reading(quantity, moment.step, values[-1], layer=name, median=median)
                )
            sizes = [tensors[i][0].numel() for i in rows]
            near, alive = (
                sum(found[part][i] * size for i, size in zip(rows, sizes, strict=True))
                for part in ("near", "alive")
            )
            shares.append(near / max(alive, 1.0))
            share = near / sum(sizes)
            readings.append(self.reading("epsilon_share", moment.step, share, layer=name))
        return [*readings, self.reading("starved_share", moment.step, min(shares))]

    def _measure(
        self, tensors: Sequence[tuple[nn.Parameter, dict, tuple[float, float, float]]]
    ) -> dict[str, list[float]]:
        """Return `rms_t`, `update_rms` and shares of every tensor, in one pass over all samples.

        `alive` is the share of coordinates that had a gradient, and `near` that of those near ε.
        """
        parts = [self._sample(definite(p.grad)) for p, _, _ in tensors]
        sizes = torch.tensor([len(part) for part in parts])
        owner = torch.repeat_interleave(torch.arange(len(parts)), sizes).to(parts[0].device)
        g = torch.cat(parts)
        m = torch.cat([self._sample(state["exp_avg"]) for _, state, _ in tensors])
        v = torch.cat([self._sample(state["exp_avg_sq"]) for _, state, _ in tensors])
        constants = [_corrections(state, settings) for _, state, settings in tensors]
        first, second, eps = g.new_tensor(constants)[owner].unbind(-1)
        root = (v / second).sqrt()
        ratio = (g / root.clamp(min=eps.clamp(min=1e-30))).square()
        update = (m / first / (root + eps).clamp(min=1e-30)).square()
        alive = (v > 0).to(g.dtype)
        near = alive * (root < NEAR_EPSILON * eps)
        sums = g.new_zeros(4, len(sizes))
        sums.index_add_(1, owner, torch.stack([ratio, update, near, alive]))
        means = sums / sizes.to(sums).clamp(min=1)
        rows = torch.cat([means[:2].sqrt(), means[2:]]).tolist()
        return dict(zip(("rms_t", "update_rms", "near", "alive"), rows, strict=True))

    def _sample(self, tensor: Tensor) -> Tensor:
        flat = local(tensor).flatten()
        stride = max(1, len(flat) // self.samples)
        width = tensor.shape[-1] if tensor.dim() else 1
        while stride > 1 and math.gcd(stride, width) > 1:
            stride += 1  # otherwise the sample would stay within a few columns
        return flat[::stride].float()


def _adam_settings(
    optimizer: Optimizer | None,
) -> dict[nn.Parameter, tuple[float, float, float]]:
    """Return (β1, β2, ε) of every parameter that an Adam-like optimizer updates."""
    groups = [] if optimizer is None else optimizer.param_groups
    settings = {
        p: (*group["betas"], group["eps"])
        for group in groups
        if len(group.get("betas", ())) == 2 and "eps" in group
        for p in group["params"]
    }
    if not settings:
        raise NotCovered("the optimizer keeps no second moment that rksp can read")
    return settings


def _corrections(state: dict, settings: tuple[float, float, float]) -> tuple[float, float, float]:
    beta1, beta2, eps = settings
    step = float(state["step"])
    return 1 - beta1**step, 1 - beta2**step, eps
