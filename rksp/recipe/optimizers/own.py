"""Optimizers that torch does not have: Lion, Cautious, MARS, and two that step as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rksp.ground.model import definite
from rksp.recipe.optimizers.groups import Group, groups_of, parameters_of


class Groupwise(torch.optim.Optimizer, ABC):
    """An optimizer that moves the parameters of one group at a time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in groups_of(self):
            params: list[Tensor] = [p for p in group.params if p.grad is not None]
            if params:
                self.move(group, params)
        return loss

    @abstractmethod
    def move(self, group: Group, params: list[Tensor]) -> None:
        """Move parameters, all of which have a gradient, by the options of their group."""


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

    def move(self, group: Group, params: list[Tensor]) -> None:
        """Move parameters against the sign of their interpolated momenta."""
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


_LEAST_KEPT = 1e-3  # least share of kept entries that an update is divided by


class AdamKin(Groupwise):
    """AdamW, whose relatives change the gradient before its moments or the update after them."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)

    def move(self, group: Group, params: list[Tensor]) -> None:
        """Move parameters along their mean gradients over the root of their squares."""
        beta1, beta2 = definite(group.betas)
        gradients = self.gradients(params, beta1)
        for p in params:
            state = self.state[p]
            if "step" not in state:
                state |= {"step": 0, "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
            state["step"] += 1
        means, squares, steps = (
            [self.state[p][name] for p in params] for name in ("mean", "square", "step")
        )
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        scales = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, definite(group.eps))
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, scales)
        self.keep(list(updates), params)
        torch._foreach_mul_(params, 1 - group.rate * definite(group.weight_decay))
        torch._foreach_add_(params, updates, alpha=-group.rate)

    def gradients(self, params: list[Tensor], beta1: float) -> list[Tensor]:
        """Return the gradients that enter the moments."""
        return [definite(p.grad) for p in params]

    def keep(self, updates: list[Tensor], params: list[Tensor]) -> None:
        """Change the updates in place."""


class Cautious(AdamKin):
    """AdamW without the entries whose update disagrees in sign with the gradient.

    Source: Liang et al. (2024), "Cautious optimizers", arXiv 2411.16085, algorithm 1. What is left
    is divided by the share that is kept, at least 0.001.
    """

    def keep(self, updates: list[Tensor], params: list[Tensor]) -> None:
        """Remove the entries that point up the slope."""
        for update, p in zip(updates, params, strict=True):
            kept = (update * definite(p.grad) > 0).to(update.dtype)
            update.mul_(kept).div_(kept.mean().clamp(min=_LEAST_KEPT))


class Mars(AdamKin):
    """AdamW over gradients with less variance.

    Source: Yuan et al. (2024), "MARS", arXiv 2411.10438, algorithm 2 in its approximate form, where
    the last batch's gradient stands for that of the last weights on the new batch:
    c = g + 0.025 β1 / (1 - β1) (g - g of the last step), each weight's clipped to norm 1. The first
    step takes c = g.
    """

    scaling = 0.025

    def gradients(self, params: list[Tensor], beta1: float) -> list[Tensor]:
        """Return the corrected gradients, and remember the new ones."""
        found = []
        for p in params:
            last = self.state[p].get("last")
            corrected = definite(p.grad).clone()
            if last is not None:
                corrected.add_(p.grad - last, alpha=self.scaling * beta1 / (1 - beta1))
            self.state[p]["last"] = definite(p.grad).clone()
            found.append(corrected.div_(corrected.norm().clamp(min=1)))
        return found
