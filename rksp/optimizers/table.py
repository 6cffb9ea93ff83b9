"""List the optimizers. To add one, write its maker and its line in `OPTIMIZERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from rksp.ground.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_AT_ONCE = 1e9  # torch's NAdam raises beta1 to its value at this speed
Family = Literal["adaptive", "plain", "sign-like", "orthogonal", "layerwise"]


class Settings(Protocol):
    """The fields of a recipe that a maker reads."""

    optimizer: str
    learning_rate: float | None
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    momentum: float
    weight_decay: float


Maker = Callable[["nn.Module", Settings], "Optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """The facts about one optimizer.

    Attributes:
        name: Name in a recipe.
        family: What an update is made of. `adaptive`: the gradient over a running second moment.
            `plain`: the gradient or its momentum. `sign-like`: the sign of a momentum.
            `orthogonal`: an orthogonalized momentum. `layerwise`: scaled to the layer's norm.
        aliases: Parts of the names that trainers give it (`adamw` of `paged_adamw_8bit`), each
            with what is lost if it is read as this optimizer, or "".
        first_step: Fields of the recipe, besides the rate, that its first update depends on. The
            betas cancel in Adam's bias correction, and a momentum starts as the gradient itself.
        follow_adam: Which parameters follow Adam, with its betas and its epsilon.
        make: Builds it over a model's trainable parameters. None: rksp knows the recipes of this
            optimizer, but cannot take its steps.
    """

    name: str
    family: Family
    aliases: tuple[tuple[str, str], ...]
    first_step: tuple[str, ...]
    make: Maker | None = None
    follow_adam: Literal["all", "some", "none"] = "none"


def _adamw(model: nn.Module, recipe: Settings) -> Optimizer:
    import torch

    # One fused update per step; without it, the first group would make torch choose the slow loop.
    return torch.optim.AdamW(_decayed_groups(model, recipe), **_adam_options(recipe), fused=True)


def _nadamw(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build Adam with Nesterov's look-ahead, of a constant beta1 as in optax and timm."""
    import torch

    return torch.optim.NAdam(
        _decayed_groups(model, recipe),
        **_adam_options(recipe),
        momentum_decay=_AT_ONCE,
        decoupled_weight_decay=True,
    )


def _cautious(model: nn.Module, recipe: Settings) -> Optimizer:
    from rksp.optimizers.adam_kin import Cautious

    return Cautious(_decayed_groups(model, recipe), **_adam_options(recipe))


def _mars(model: nn.Module, recipe: Settings) -> Optimizer:
    from rksp.optimizers.adam_kin import Mars

    return Mars(_decayed_groups(model, recipe), **_adam_options(recipe))


def _adam_options(recipe: Settings) -> dict[str, object]:
    return {
        "lr": recipe.learning_rate,
        "betas": (recipe.adam_beta1, recipe.adam_beta2),
        "eps": recipe.adam_epsilon,
    }


def _sgd(model: nn.Module, recipe: Settings) -> Optimizer:
    import torch

    groups = _decayed_groups(model, recipe)
    return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.momentum, fused=True)


def _lion(model: nn.Module, recipe: Settings) -> Optimizer:
    from rksp.optimizers.lion import Lion

    betas = (recipe.adam_beta1, recipe.adam_beta2)
    return Lion(_decayed_groups(model, recipe), lr=recipe.learning_rate, betas=betas)


def _adafactor(model: nn.Module, recipe: Settings) -> Optimizer:
    import torch

    return torch.optim.Adafactor(_decayed_groups(model, recipe), lr=recipe.learning_rate)


def _muon(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build Muon over the matrices of the blocks and AdamW over everything else.

    Muon is torch's own (Jordan et al., 2024), with updates scaled to AdamW's RMS, so that one
    learning rate serves both. Embeddings, the head and vectors train under AdamW.
    """
    import torch

    from rksp.optimizers.joint import JointOptimizer

    if not hasattr(torch.optim, "Muon"):
        raise InputError(
            f"Optimizer 'muon' needs torch 2.9 or newer, this is {torch.__version__}; "
            "upgrade torch or choose adamw."
        )
    params = _trainable(model)
    edges = _embeddings_and_head(model)
    matrices = [p for p in params if p.dim() == 2 and id(p) not in edges]
    if not matrices:
        raise InputError("Optimizer 'muon' found no matrix to train; choose adamw.")
    taken = {id(p) for p in matrices}
    rest = [p for p in params if id(p) not in taken]
    rate, betas = recipe.learning_rate, (recipe.adam_beta1, recipe.adam_beta2)
    muon = torch.optim.Muon(
        matrices, lr=rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(rest, lr=rate, betas=betas, weight_decay=0.0, fused=True)
    return JointOptimizer(muon, adamw)


def _unmade(
    name: str,
    family: Family,
    *aliases: str,
    follow_adam: Literal["all", "some", "none"] = "none",
) -> OptimizerSpec:
    """Describe an optimizer that recipes name but rksp cannot make."""
    return OptimizerSpec(
        name=name,
        family=family,
        aliases=tuple((alias, "") for alias in aliases),
        first_step=("max_grad_norm", "weight_decay"),
        follow_adam=follow_adam,
    )


def _adam_kin(name: str, alias: str, make: Maker, *also_first: str) -> OptimizerSpec:
    """Describe a relative of AdamW, whose first step may depend on more fields."""
    return OptimizerSpec(
        name=name,
        family="adaptive",
        aliases=((alias, ""),),
        first_step=(*also_first, "adam_epsilon", "max_grad_norm", "weight_decay"),
        make=make,
        follow_adam="all",
    )


OPTIMIZERS: tuple[OptimizerSpec, ...] = (
    OptimizerSpec(
        name="adamw",
        family="adaptive",
        aliases=(("adamw", ""), ("adam", "weight decay decoupled")),
        first_step=("adam_epsilon", "max_grad_norm", "weight_decay"),
        make=_adamw,
        follow_adam="all",
    ),
    OptimizerSpec(
        name="sgd",
        family="plain",
        aliases=(("sgd", ""),),
        first_step=("max_grad_norm", "weight_decay"),
        make=_sgd,
    ),
    OptimizerSpec(
        name="lion",
        family="sign-like",
        aliases=(("lion", ""),),
        first_step=("weight_decay",),
        make=_lion,
    ),
    OptimizerSpec(
        name="adafactor",
        family="adaptive",
        aliases=(("adafactor", ""),),
        first_step=("max_grad_norm", "weight_decay"),
        make=_adafactor,
    ),
    OptimizerSpec(
        name="muon",
        family="orthogonal",
        aliases=(("muon", ""),),
        first_step=("max_grad_norm", "weight_decay"),
        make=_muon,
        follow_adam="some",
    ),
    _adam_kin("nadamw", "nadam", _nadamw, "adam_beta1"),
    _adam_kin("cautious", "cautious", _cautious),
    _adam_kin("mars", "mars", _mars),
    _unmade("sophia", "adaptive", "sophia"),
    _unmade("soap", "adaptive", "soap"),
    _unmade("kron", "orthogonal", "kron", "psgd"),
    _unmade("scion", "orthogonal", "scion"),
    _unmade("lamb", "layerwise", "lamb", follow_adam="all"),
)
_BY_NAME = {spec.name: spec for spec in OPTIMIZERS}


def optimizer_spec(name: str) -> OptimizerSpec:
    """Return the table's entry for a recipe's optimizer."""
    return _BY_NAME[name]


def optimizer_named(name: str) -> tuple[OptimizerSpec | None, str]:
    """Find the optimizer that a trainer calls `name`, and what is lost by reading it so.

    A name that contains aliases of two optimizers (`MuonWithAuxAdam`) means the later in the table.
    """
    plain = name.rsplit(".", 1)[-1].lower()
    for spec in reversed(OPTIMIZERS):
        for alias, loss in spec.aliases:
            if alias in plain:
                return spec, loss
    return None, ""


def make_optimizer(model: nn.Module, recipe: Settings) -> Optimizer:
    """Build the optimizer of a recipe over all trainable parameters of a model.

    As in common trainers, weight decay applies only to matrices.

    Raises:
        InputError: rksp cannot make it, or the installed torch has no such optimizer.
    """
    make = optimizer_spec(recipe.optimizer).make
    if make is None:
        made = ", ".join(spec.name for spec in OPTIMIZERS if spec.make is not None)
        raise InputError(
            f"rksp can check a recipe with the optimizer {recipe.optimizer!r}, but cannot take its "
            f"steps; choose {made} to measure the model, or --evidence forward."
        )
    return make(model, recipe)


def _trainable(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _decayed_groups(model: nn.Module, recipe: Settings) -> list[dict[str, object]]:
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
