"""The optimizer a recipe names: torch's own where torch has one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rksp.errors import InputError
from rksp.recipe import Recipe


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum, with decoupled weight decay.

    Source: Chen et al. (2023), "Symbolic discovery of optimization algorithms", algorithm 2:
    u = sign(β1 m + (1-β1) g);  θ ← θ - η (u + λ θ);  m ← β2 m + (1-β2) g.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
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
        return loss


class Pair(torch.optim.Optimizer):
    """Two optimizers over disjoint parameters that step as one."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self.parts = (first, second)
        super().__init__(
            [p for part in self.parts for g in part.param_groups for p in g["params"]], {}
        )
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self):
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict):
        for part, stored in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(stored)
        # Loading gives the parts new groups; the rate is set on these.
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of a recipe over all trainable parameters of a model.

    Weight decay applies to matrices only, as trainers do. Muon (Jordan et al., 2024; torch's own,
    with updates scaled to AdamW's RMS, so that one learning rate serves both) takes the matrices
    of the blocks; embeddings, heads and vectors train under AdamW at the same rate.

    Raises:
        InputError: The installed torch has no such optimizer.
    """
    rate = recipe.learning_rate
    params = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (recipe.adam_beta1, recipe.adam_beta2)
    # One fused update per step; the first group alone would make torch choose the slow loop.
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=recipe.adam_epsilon, fused=True)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum, fused=True)
    if recipe.optimizer == "lion":
        return Lion(groups, lr=rate, betas=betas)
    if recipe.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=rate)
    if recipe.optimizer != "muon":
        raise InputError(
            f"rksp has no implementation of the optimizer {recipe.optimizer!r}; it can check the "
            "recipe, but not take a step. Choose adamw to measure the model."
        )
    if not hasattr(torch.optim, "Muon"):
        raise InputError(
            f"Optimizer 'muon' needs torch 2.9 or newer, this is {torch.__version__}; "
            "upgrade torch or choose adamw."
        )
    edges = _embeddings_and_head(model)
    matrices = [p for p in params if p.dim() == 2 and id(p) not in edges]
    if not matrices:
        raise InputError("Optimizer 'muon' found no matrix to train; choose adamw.")
    taken = {id(p) for p in matrices}
    rest = [p for p in params if id(p) not in taken]
    muon = torch.optim.Muon(
        matrices, lr=rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return Pair(muon, torch.optim.AdamW(rest, lr=rate, betas=betas, weight_decay=0.0, fused=True))


def _embeddings_and_head(model: nn.Module) -> set[int]:
    """Identities of the matrices at the ends: every embedding, and the last linear layer."""
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    ends = [m for m in model.modules() if isinstance(m, nn.Embedding)] + linears[-1:]
    return {id(m.weight) for m in ends}
