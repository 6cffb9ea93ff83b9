"""The part of a step that optimizers of our own share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Groupwise(torch.optim.Optimizer, ABC):
    """An optimizer that moves the parameters of one group at a time."""

    @torch.no_grad()
    def step(self, closure=None):
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self.move(group, params)
        return loss

    @abstractmethod
    def move(self, group: dict[str, object], params: list[Tensor]) -> None:
        """Move parameters, all of which have a gradient, by the options of their group."""
