"""Optimizers that torch does not have: Lion, and two that step as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rksp.ground.model import definite
from rksp.recipe.optimizers.groups import Group, groups_of, parameters_of


class JointOptimizer(torch.optim.Optimizer):
    """Two optimizers over disjoint parameters that step as one."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self.parts = (first, second)
        super().__init__(parameters_of(*self.parts), {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Step both optimizers."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, object]:
        """Return the states of both optimizers."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the states of both optimizers."""
        for part, stored in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(stored)
        # Loading gives the parts new groups, and the training loop sets the rate on these.
        self.param_groups = [group for part in self.parts for group in part.param_groups]


class Lion(torch.optim.Optimizer):
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

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Move parameters against the sign of their interpolated momenta."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in groups_of(self):
            params: list[Tensor] = [p for p in group.params if p.grad is not None]
            if params:
                self._move(group, params)
        return loss

    def _move(self, group: Group, params: list[Tensor]) -> None:
        beta1, beta2 = definite(group.betas)
        grads = [definite(p.grad) for p in params]
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        momenta = [self.state[p]["momentum"] for p in params]
        updates = torch._foreach_mul(momenta, beta1)
        torch._foreach_add_(updates, grads, alpha=1 - beta1)
        torch._foreach_sign_(updates)
        torch._foreach_mul_(params, 1 - group.rate * definite(group.weight_decay))
        torch._foreach_add_(params, updates, alpha=-group.rate)
        torch._foreach_lerp_(momenta, grads, 1 - beta2)
