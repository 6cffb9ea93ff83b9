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
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.moment import Moment


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

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        start = time.perf_counter()
        layers = find_anatomy(model).attention
        if not layers:
            raise NotCovered(
                "QK-norm needs query and key projections and found none that it knows in this "
                "model; choose another intervention."
            )
        if any(layer.has_qk_norm for layer in layers):
            raise NotCovered("QK-norm: this model already normalizes its queries and keys.")
        if any(layer.key_down is not None for layer in layers):
            raise NotCovered(
                "QK-norm does not fit latent attention, whose keys are never formed; "
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
    """Gives the gains to the optimizer that has the vectors, at the common rate, undecayed."""
    part = getattr(optimizer, "parts", (optimizer,))[-1]
    part.add_param_group({"params": gains, "weight_decay": 0.0})
    if part is not optimizer:  # of a pair that steps as one
        optimizer.param_groups.append(part.param_groups[-1])
