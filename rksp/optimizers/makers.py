"""Make the optimizers that rksp can step, over the trainable parameters of a model.

As in common trainers, weight decay applies only to matrices.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.optimizers.muon_scale import MuonScale, matched_rate

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_AT_ONCE = 1e9  # torch's NAdam raises beta1 to its value at this speed


class Settings(Protocol):
    """The fields of a recipe that a maker reads, and never sets: a recipe is frozen."""

    @property
    def optimizer(self) -> str:
        """Its name."""

    @property
    def learning_rate(self) -> float | None:
        """The peak rate."""

    @property
    def adam_beta1(self) -> float:
        """Decay of the first moment."""

    @property
    def adam_beta2(self) -> float:
        """Decay of the second moment."""

    @property
    def adam_epsilon(self) -> float:
        """Added to the root of the second moment."""

    @property
    def momentum(self) -> float:
        """Of SGD."""

    @property
    def weight_decay(self) -> float:
        """Of the matrices."""

    @property
    def muon_scale(self) -> MuonScale:
        """Of Muon's update."""


def adamw(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build torch's AdamW."""
    import torch

    # One fused update per step; without it, the first group would make torch choose the slow loop.
    return torch.optim.AdamW(_decayed_groups(model, recipe), **_adam_options(recipe), fused=True)


def adam(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build torch's Adam, which adds the decay to the gradient."""
    import torch

    return torch.optim.Adam(_decayed_groups(model, recipe), **_adam_options(recipe), fused=True)


def nadamw(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build Adam with Nesterov's look-ahead, of a constant beta1 as in optax and timm."""
    import torch

    return torch.optim.NAdam(
        _decayed_groups(model, recipe),
        **_adam_options(recipe),
        momentum_decay=_AT_ONCE,
        decoupled_weight_decay=True,
    )


def cautious(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build the cautious AdamW."""
    from rksp.optimizers.own import Cautious

    return Cautious(_decayed_groups(model, recipe), **_adam_options(recipe))


def mars(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build MARS over AdamW."""
    from rksp.optimizers.own import Mars

    return Mars(_decayed_groups(model, recipe), **_adam_options(recipe))


def _adam_options(recipe: Settings) -> dict[str, Any]:
    return {
        "lr": recipe.learning_rate,
        "betas": (recipe.adam_beta1, recipe.adam_beta2),
        "eps": recipe.adam_epsilon,
    }


def sgd(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build torch's SGD with momentum."""
    import torch

    groups = _decayed_groups(model, recipe)
    return torch.optim.SGD(
        groups, lr=definite(recipe.learning_rate), momentum=recipe.momentum, fused=True
    )


def lion(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build Lion."""
    from rksp.optimizers.own import Lion

    betas = (recipe.adam_beta1, recipe.adam_beta2)
    return Lion(_decayed_groups(model, recipe), lr=definite(recipe.learning_rate), betas=betas)


def adafactor(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build torch's Adafactor."""
    import torch

    return torch.optim.Adafactor(_decayed_groups(model, recipe), lr=definite(recipe.learning_rate))


def muon(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build Muon over the matrices of the blocks and AdamW over everything else.

    Muon is torch's own (Jordan et al., 2024). With `match_rms_adamw` its updates have AdamW's RMS
    (Liu et al., 2025), so that one learning rate serves both. Embeddings, the head and vectors
    train under AdamW.
    """
    import torch

    from rksp.optimizers.own import JointOptimizer

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
    """Split the parameters into matrices, which decay, and vectors, which do not."""
    params = _trainable(model)
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _embeddings_and_head(model: nn.Module) -> set[int]:
    """Return the identities of the matrices at the ends: embeddings and the last linear layer."""
    from torch import nn

    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    ends = [m for m in model.modules() if isinstance(m, nn.Embedding)] + linears[-1:]
    return {id(m.weight) for m in ends}
