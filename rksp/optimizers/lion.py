"""Implement Lion, which torch does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rksp.ground.model import definite
from rksp.optimizers.groupwise import Groupwise


class Lion(Groupwise):
    """Sign of an interpolated momentum, with decoupled weight decay.

    Source: Chen et al. (2023), "Symbolic discovery of optimization algorithms", algorithm 2:
    u = sign(β1 m + (1-β1) g);  θ ← θ - η (u + λ θ);  m ← β2 m + (1-β2) g.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Move parameters against the sign of their interpolated momenta."""
        beta1, beta2 = group["betas"]
        grads = [definite(p.grad) for p in params]
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum"] for p in params]
        updates = torch._foreach_mul(momenta, beta1)
        torch._foreach_add_(updates, grads, alpha=1 - beta1)
        torch._foreach_sign_(updates)
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-group["lr"])
        torch._foreach_lerp_(momenta, grads, 1 - beta2)
