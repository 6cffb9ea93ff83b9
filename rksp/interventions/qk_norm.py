"""QK-norm: queries and keys are normalized per head from the first step on."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from rksp.errors import InputError, NotCovered
from rksp.interventions.base import Intervention
from rksp.interventions.ledger import record
from rksp.interventions.projections import Projection, find_attention
from rksp.monitors.base import Moment
from rksp.recipe import Recipe


class QKNorm(Intervention):
    """Puts an RMS norm with a learned gain on every head's queries and keys, before positions.

    Source: Henry et al. (2020) and Dehghani et al. (2023), in the RMS form of Qwen3: the gain has
    the width of a head and is shared by a layer's heads. A scaled logit is then at most
    √width · max|gain_q| · max|gain_k|, whatever the weights do.

    A change of architecture: it is made once, when the intervention is bound, and stays. The
    norms hang on the projections as hooks, their gains as parameters `q_norm_gain` and
    `k_norm_gain` of the projection, which checkpoints carry but the plain architecture cannot
    load. Bind before sharding or compiling.

    Args:
        epsilon: Added to the mean square.
    """

    name = "qk_norm"

    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        if not epsilon > 0:
            raise InputError(f"QK-norm needs epsilon > 0, got epsilon={epsilon}.")
        self.epsilon = epsilon

    def bind(self, model: nn.Module, optimizer: Optimizer, recipe: Recipe) -> None:
        start = time.perf_counter()
        layers = find_attention(model)
        if not layers:
            raise NotCovered(
                "QK-norm needs query and key projections and found none that it knows in this "
                "model; choose another intervention."
            )
        if any(layer.is_normed for layer in layers):
            raise NotCovered("QK-norm: this model already normalizes its queries and keys.")
        gains = []
        for layer in layers:
            gains.append(self._insert(layer.query, layer.heads, "q_norm_gain"))
            gains.append(self._insert(layer.key, layer.key_heads, "k_norm_gain"))
        if optimizer is not None:
            _add(optimizer, gains)
        moment = Moment(step=0, model=model)
        what = "put norms on queries and keys"
        record(self, moment, what, since=start, layers=float(len(layers)))

    def _insert(self, projection: Projection, heads: int, name: str) -> nn.Parameter:
        weight = projection.module.weight
        width = projection.outputs // heads
        gain = nn.Parameter(torch.ones(width, dtype=weight.dtype, device=weight.device))
        projection.module.register_parameter(name, gain)

        def normalize(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
            rows = projection.rows
            part = output if rows is None else output.index_select(-1, rows)
            by_head = part.unflatten(-1, (heads, width))
            scale = getattr(module, name).to(part.dtype)
            normed = F.rms_norm(by_head, (width,), scale, self.epsilon).flatten(-2)
            return normed if rows is None else output.index_copy(-1, rows, normed)

        projection.module.register_forward_hook(normalize)
        return gain


def _add(optimizer: Optimizer, gains: list[nn.Parameter]) -> None:
    """Gives the gains to the optimizer that has the vectors, at the common rate, undecayed."""
    part = getattr(optimizer, "parts", (optimizer,))[-1]
    part.add_param_group({"params": gains, "weight_decay": 0.0})
    if part is not optimizer:  # of a pair that steps as one
        optimizer.param_groups.append(part.param_groups[-1])
