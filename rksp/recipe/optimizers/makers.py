"""Make the optimizers that rksp can step, over the trainable parameters of a model.

As in common trainers, weight decay applies only to matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from rksp.ground.errors import InputError
from rksp.ground.model import definite

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Settings = Any  # a recipe: what makes the optimizer that it names stands below it
# `match_rms_adamw` and `original` are names of torch.optim.Muon, `spectral` is one of Megatron's.
MuonScale = Literal["match_rms_adamw", "original", "spectral"]
_MATCHED = 0.2  # Liu et al., 2025 (2502.16982), equation 4


def matched_rate(width: float, scale: MuonScale = "original") -> float:
    """Return the rate of `match_rms_adamw` that steps as far as the rate 1 of `scale` does.

    A square matrix of this width has √max(1, rows/columns) = 1 in the scale of Jordan et al.
    (2024), 0.2 √max(rows, columns) in that of Liu et al. (2025, 2502.16982, equation 4), and
    √max(rows, columns) in Megatron's.
    """
    if scale == "match_rms_adamw":
        return 1.0
    return 1 / _MATCHED if scale == "spectral" else 1 / (_MATCHED * math.sqrt(width))


def made(
    model: nn.Module, recipe: Settings, *, kind: str, takes: str = "", **fixed: object
) -> Optimizer:
    """Build an optimizer of one class over matrices, which decay, and vectors, which do not.

    Args:
        model: Any module.
        recipe: The recipe.
        kind: A class of `own`, else of torch.optim.
        takes: What it takes of the recipe beside the rate: `betas`, `eps`, `momentum`.
        fixed: Other options.
    """
    import torch

    from rksp.recipe.optimizers import own

    known = {"betas": (recipe.adam_beta1, recipe.adam_beta2), "eps": recipe.adam_epsilon,
             "momentum": recipe.momentum}  # fmt: skip
    options = {name: known[name] for name in takes.split()} | fixed
    make: Callable[..., Optimizer] = getattr(own, kind, None) or getattr(torch.optim, kind)
    return make(_decayed_groups(model, recipe), lr=definite(recipe.learning_rate), **options)


def muon(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build Muon over the matrices of the blocks and AdamW over everything else.

    Muon is torch's own (Jordan et al., 2024). With `match_rms_adamw` its updates have AdamW's RMS
    (Liu et al., 2025), so that one learning rate serves both. Embeddings, the head and vectors
    train under AdamW.
    """
    import torch

    from rksp.recipe.optimizers.own import JointOptimizer

    if not hasattr(torch.optim, "Muon"):
        raise InputError(
            f"Optimizer 'muon' needs torch 2.9 or newer, this is {torch.__version__}; "
            "upgrade torch or choose adamw."
        )
    params = _trainable(model)
    edges = _embeddings_and_head(model)
    matrices = [p for p in params if p.dim() == 2 and not p.is_complex() and id(p) not in edges]
    if not matrices:
        raise InputError("Optimizer 'muon' found no matrix to train; choose adamw.")
    taken = {id(p) for p in matrices}
    rest = [p for p in params if id(p) not in taken]
    rate, betas = definite(recipe.learning_rate), (recipe.adam_beta1, recipe.adam_beta2)
    # AdamW's rate is that of the scale in which Muon's updates have its RMS.
    adams = rate * matched_rate(median(max(p.shape) for p in matrices), recipe.muon_scale)
    is_spectral = recipe.muon_scale == "spectral"  # torch has no such scale
    muon = torch.optim.Muon(
        matrices,
        lr=adams if is_spectral else rate,
        weight_decay=recipe.weight_decay / (adams / rate if is_spectral else 1.0),
        adjust_lr_fn="match_rms_adamw" if is_spectral else recipe.muon_scale,
    )
    adamw = torch.optim.AdamW(rest, lr=adams, betas=betas, weight_decay=0.0, fused=True)
    return JointOptimizer(muon, adamw)


def _trainable(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _decayed_groups(model: nn.Module, recipe: Settings) -> list[dict[str, Any]]:
    params = _trainable(model)
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _embeddings_and_head(model: nn.Module) -> set[int]:
    from torch import nn

    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    ends = [m for m in model.modules() if isinstance(m, nn.Embedding)] + linears[-1:]
    return {id(m.weight) for m in ends}
