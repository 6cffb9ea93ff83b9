"""Take back part of the update that the optimizer's last step made to a parameter."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.run_state import optimizer_parts

_ADAMS = (torch.optim.AdamW, torch.optim.Adam)


class Updates:
    """Knows the updates of torch's Adam and AdamW from their state, and all others from copies.

    Attributes:
        moving: Parameters that the step has a gradient for.
        copies: Their values before the step, where the state will not tell them.
    """

    def bind(self, optimizer: Optimizer) -> None:
        """Find the parameters of optimizers whose step is known."""
        self._known: dict[nn.Parameter, tuple[Optimizer, int]] = {}
        for part in optimizer_parts(optimizer):
            if type(part) in _ADAMS:
                for index, group in enumerate(part.param_groups):
                    self._known |= dict.fromkeys(group["params"], (part, index))
        self.forget()

    def forget(self) -> None:
        """Forget the last step."""
        self.moving: set[nn.Parameter] = set()
        self.copies: dict[nn.Parameter, Tensor] = {}

    def remember(
        self, moving: Sequence[nn.Parameter], *, measured: Collection[nn.Parameter]
    ) -> None:
        """Note what will move, and copy what is not both measured and known."""
        self.moving = set(moving)
        rest = [p for p in moving if p not in measured or p not in self._known]
        self.copies = {p: p.detach().clone() for p in rest}

    @torch.no_grad()
    def scale(self, parameter: nn.Parameter, factor: Tensor, *, is_transposed: bool) -> None:
        """Scale the update by factors on the host: `[1]`, or one for every row of outputs."""
        back: Tensor | float = 1.0 - float(factor[0])
        if len(factor) > 1:
            rows = 1.0 - factor.to(parameter.device, at_least_float(parameter).dtype)
            rows = rows.view(*parameter.shape[: parameter.dim() - 2], -1)
            back = rows.unsqueeze(-2 if is_transposed else -1)
        if isinstance(parameter, DTensor) and isinstance(back, Tensor):
            mesh = parameter.device_mesh
            back = DTensor.from_local(back, mesh, [Replicate()] * mesh.ndim, run_check=False)
        weight = at_least_float(parameter.detach())
        if parameter in self.copies:
            moved = weight - at_least_float(self.copies[parameter])
            weight.sub_(moved.mul_(back))
        else:
            part, index = self._known[parameter]
            _take_back(weight, back, part, part.param_groups[index], part.state[parameter])
        if weight.dtype != parameter.dtype:
            parameter.copy_(weight)


def _take_back(
    weight: Tensor,
    back: Tensor | float,
    optimizer: Optimizer,
    group: Mapping[str, Any],
    state: Mapping[str, Any],
) -> None:
    """Take a share of the last step of Adam or AdamW back, in place, without a copy from before it.

    With u = −η m̂ / (√v̂ + ε) and decay ηλ (Loshchilov and Hutter, 2019, algorithm 2), the update is
    (u − ηλ W) / (1 − ηλ), where W is the weight after the step.
    """
    (beta1, beta2), rate = group["betas"], float(group["lr"])
    step = float(state["step"])
    decays = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")
    decay = rate * group["weight_decay"] if decays else 0.0
    second = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
    correction = math.sqrt(1 - beta2**step)
    root = at_least_float(second).sqrt().add_(group["eps"] * correction)
    if decay:
        weight.mul_(1 + back * (decay / (1 - decay)))
    share = rate * correction / ((1 - beta1**step) * (1 - decay))
    if isinstance(back, float):  # one pass over the weights less
        share *= back
    else:
        root.div_(back)
    weight.addcdiv_(at_least_float(state["exp_avg"]), root, value=share)
