"""Implement relatives of AdamW, which torch does not have: Cautious and MARS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rksp.ground.model import definite
from rksp.optimizers.groupwise import Groupwise

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

    def move(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Move parameters along their mean gradients over the root of their squares."""
        rate, (beta1, beta2) = group["lr"], group["betas"]
        gradients = self.gradients(params, beta1)
        for p in params:
            state = self.state[p]
            if "step" not in state:
                state |= {"step": 0, "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
            state["step"] += 1
        means = [self.state[p]["mean"] for p in params]
        squares = [self.state[p]["square"] for p in params]
        steps = [self.state[p]["step"] for p in params]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        scales = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, scales)
        self.keep(list(updates), params)
        torch._foreach_mul_(params, 1 - rate * group["weight_decay"])
        torch._foreach_add_(params, updates, alpha=-rate)

    def gradients(self, params: list[Tensor], beta1: float) -> list[Tensor]:
        """Return what the moments are made of."""
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
