"""The update that the optimizer's last step made to a parameter, and how to take part of it back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
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

    def remember(self, moving: Sequence[nn.Parameter], *, measured: Collection[nn.Parameter]) -> None:
        """Note what will move, and copy what is not both measured and known."""
        self.moving = set(moving)
        rest = [p for p in moving if p not in measured or p not in self._known]
        self.copies = {p: p.detach().clone() for p in rest}

    def of(self, parameter: nn.Parameter) -> Tensor:
        """Return the update of a parameter that moved, at least float32."""
        if parameter in self.copies:
            return at_least_float(parameter.detach()) - at_least_float(self.copies[parameter])
        part, index = self._known[parameter]
        return adam_update(parameter, part.param_groups[index], part.state[parameter], part)

    def scale(self, parameter: nn.Parameter, factor: Tensor, is_transposed: bool) -> None:
        """Scale the update by a factor `[1]`, or by one for every row of outputs."""
        update = self.of(parameter)
        back = 1.0 - factor.to(update.dtype)
        if len(back) > 1:
            rows = back.view(*parameter.shape[: parameter.dim() - 2], -1)
            back = rows.unsqueeze(-2 if is_transposed else -1)
        parameter.detach().sub_((update * back).to(parameter.dtype))


def adam_update(
    parameter: Tensor, group: Mapping[str, Any], state: Mapping[str, Any], optimizer: Optimizer
) -> Tensor:
    """Return W_after − W_before of torch's Adam or AdamW (Loshchilov and Hutter, 2019, alg. 2)."""
    (beta1, beta2), rate = group["betas"], group["lr"]
    step = torch.as_tensor(state["step"], dtype=torch.float64)  # 1 - β2 cancels in float32
    second = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
    root = at_least_float(second).sqrt().div_((1 - beta2**step).sqrt()).add_(group["eps"])
    moved = at_least_float(state["exp_avg"]).div(root).mul_(-rate / (1 - beta1**step))
    decays = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")
    decay = rate * group["weight_decay"] if decays else 0.0
    if not decay:
        return moved
    before = (at_least_float(parameter.detach()) - moved).div_(1 - decay)
    return moved.sub_(before, alpha=float(decay))
