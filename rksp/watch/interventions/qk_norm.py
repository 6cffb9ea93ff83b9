"""QK-norm: normalize queries and keys per head from the first step on."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from rksp.ground.errors import InputError, NotCovered
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record
from rksp.watch.moment import Moment


class QKNorm(Intervention):
    """Adds an RMS norm with a learned gain to every head's queries and keys, before positions.

    Source: Henry et al. (2020) and Dehghani et al. (2023), in the RMS form of Qwen3: the gain has
        the
    width of a head and is shared by a layer's heads. A scaled logit is then at most
    √width · max|gain_q| · max|gain_k|, whatever the weights are.

    The intervention changes the architecture once, when it is bound. The norms are hooks on the
    projections, and their gains are the projections' parameters `q_norm_gain` and `k_norm_gain`.
    Checkpoints contain the gains, but the plain architecture cannot load them. Bind before sharding
    or compiling.

    Args:
        epsilon: Added to the mean square.
    """

    name = "qk_norm"

    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        if not epsilon > 0:
            raise InputError(f"QK-norm needs epsilon > 0, got epsilon={epsilon}.")
        self.epsilon = epsilon

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Add the norms and give their gains to the optimizer.

        Raises:
            NotCovered: The model has no known projections, has QK-norm already, or uses latent
                attention.
        """
        start = time.perf_counter()
        layers = find_anatomy(model).attention
        if not layers:
            raise NotCovered(
                "QK-norm found no query and key projections of a known layout; choose another "
                "intervention."
            )
        if any(layer.has_qk_norm for layer in layers):
            raise NotCovered("QK-norm: this model already normalizes its queries and keys.")
        if any(layer.key_down is not None for layer in layers):
            raise NotCovered(
                "QK-norm does not work with latent attention, which never forms its keys; "
                "choose qk_clip."
            )
        owners = {id(getattr(module, "weight", None)): module for module in model.modules()}
        gains = []
        for layer in layers:
            for matrix, name in ((layer.query, "q_norm_gain"), (layer.key, "k_norm_gain")):
                gains.append(self._insert(owners[id(matrix.parameter)], matrix, name))
        if optimizer is not None:
            _add(optimizer, gains)
        moment = Moment(step=0, model=model)
        what = "put norms on queries and keys"
        record(self, moment, what, since=start, layers=float(len(layers)))

    def _insert(self, module: nn.Module, matrix: Matrix, name: str) -> nn.Parameter:
        width = matrix.shape[0] // matrix.heads
        gain = nn.Parameter(torch.ones_like(matrix.parameter[0, :1]).repeat(width))
        module.register_parameter(name, gain)
        start, stop = matrix.start, matrix.stop

        def normalize(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
            groups = output.unflatten(-1, (matrix.groups, -1))
            heads = groups[..., start:stop].flatten(-2).unflatten(-1, (matrix.heads, width))
            scale = getattr(module, name).to(output.dtype)
            normed = F.rms_norm(heads, (width,), scale, self.epsilon)
            part = normed.flatten(-2).unflatten(-1, (matrix.groups, -1))
            return torch.cat([groups[..., :start], part, groups[..., stop:]], -1).flatten(-2)

        module.register_forward_hook(normalize)
        return gain


def _add(optimizer: Optimizer, gains: list[nn.Parameter]) -> None:
    """Add the gains to the optimizer of the vectors, at the common rate and without decay."""
    part = getattr(optimizer, "parts", (optimizer,))[-1]
    part.add_param_group({"params": gains, "weight_decay": 0.0})
    if part is not optimizer:  # the optimizer is a pair that steps as one
        optimizer.param_groups.append(part.param_groups[-1])
