"""Combine several optimizers that a training loop steps as one."""

from __future__ import annotations

import torch


class JointOptimizer(torch.optim.Optimizer):
    """Two optimizers over disjoint parameters that step as one."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self.parts = (first, second)
        super().__init__(
            [p for part in self.parts for g in part.param_groups for p in g["params"]], {}
        )
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        """Step both optimizers."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self):
        """Return the states of both optimizers."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict):
        """Load the states of both optimizers."""
        for part, stored in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(stored)
        # Loading gives the parts new groups, and the training loop sets the rate on these.
        self.param_groups = [group for part in self.parts for group in part.param_groups]
