"""The one table of optimizers: to add one, write its maker and its row in `OPTIMIZERS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from rksp.ground.errors import InputError
from rksp.recipe.optimizers import makers
from rksp.recipe.optimizers.makers import RowRule, Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Labelled = Literal["lab", "public", "none"]
Family = Literal["adaptive", "plain", "sign-like", "orthogonal", "layerwise"]
Maker = Callable[["nn.Module", Settings], "Optimizer"]
_SWEEP = "the Marin optimizer sweep at 130M (arXiv 2509.02046)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRange:
    """Known peak learning rates of one optimizer.

    Attributes:
        passing: Highest rate that trained in the Marin sweep at 130M, with its base recipe.
        failing: Lowest rate that failed in it, in at least half of the runs; None if none did.
        over_adamw: Largest ratio of published peak rates to AdamW's for the same model; None if the
            rates are not comparable.
        source: Where the numbers come from.
    """

    passing: float | None = None
    failing: float | None = None
    over_adamw: float | None = None
    source: str = "none that is common"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """The facts about one optimizer.

    Attributes:
        name: Name in a recipe.
        family: What an update is made of. `adaptive`: the gradient over a running second moment.
            `plain`: the gradient or its momentum. `sign-like`: the sign of a momentum, so that all
            entries have the same size. `orthogonal`: an orthogonalized momentum, all of whose
            singular values are the same. `layerwise`: scaled to the layer's norm.
        aliases: Parts of the names that trainers give it (`adamw` of `paged_adamw_8bit`), each
            with what is lost if it is read as this optimizer, or "".
        first_step: Fields of the recipe, besides the rate, that its first update depends on. The
            betas cancel in Adam's bias correction, and a momentum starts as the gradient itself.
        follow_adam: Which parameters follow Adam, with its betas and its epsilon.
        make: Builds it over a model's trainable parameters. None: rksp knows the recipes of this
            optimizer, but cannot take its steps.
        stepped_by: Name of the class that takes the steps; empty if it is not one class.
        by_rows: Computes rows of its first update; None if it needs the whole weight.
        rates: Known peak learning rates.
        needs_warmup: False if runs without warm-up succeeded (T5 and PaLM had none with
            Adafactor), or if none is known.
        labelled: Which labelled runs hold it: those of the lab, only public ladders, or none.
        counts_as: The optimizer that stands for it in the labelled runs; empty for itself.
        is_adam_kin: Its edge differs from AdamW's by a fraction of a decade.
        has_memories: It has the two memories of Adam.
        is_warmed: A warm-up protects it.
        looks_ahead: As Nesterov did: the newest gradient weighs more the lower beta1 is.
        has_scales: Its update is scaled in one of the ways of `Recipe.muon_scale`.
        couples_decay: It adds the weight decay to a gradient that it then normalizes.
    """

    name: str
    family: Family
    aliases: tuple[tuple[str, str], ...]
    first_step: tuple[str, ...] = ("max_grad_norm", "weight_decay")
    make: Maker | None = None
    follow_adam: Literal["all", "some", "none"] = "none"
    stepped_by: str = ""
    by_rows: RowRule | None = None
    rates: RateRange = RateRange()
    needs_warmup: bool = False
    labelled: Labelled = "none"
    counts_as: str = ""
    is_adam_kin: bool = False
    has_memories: bool = False
    is_warmed: bool = False
    looks_ahead: bool = False
    has_scales: bool = False
    couples_decay: bool = False


def _swept(
    passing: float, failing: float | None, over_adamw: float | None, source: str = _SWEEP
) -> RateRange:
    return RateRange(passing=passing, failing=failing, over_adamw=over_adamw, source=source)


def _adam_kin(name: str, alias: str, make: Maker | None, **more: Any) -> OptimizerSpec:
    """Describe a relative of AdamW."""
    usual: dict[str, Any] = {
        "rates": _swept(0.016, 0.032, 1.0),
        "first_step": ("adam_epsilon", "max_grad_norm", "weight_decay"),
        "labelled": "public",
    }
    return OptimizerSpec(
        name=name,
        family="adaptive",
        aliases=((alias, ""),),
        make=make,
        follow_adam="all",
        needs_warmup=True,
        is_adam_kin=True,
        has_memories=True,
        is_warmed=True,
        **usual | more,
    )


def _unmade(
    name: str, family: Family, *aliases: str, labelled: Labelled = "public", **more: Any
) -> OptimizerSpec:
    """Describe an optimizer that recipes name but rksp cannot make."""
    return OptimizerSpec(
        name=name,
        family=family,
        aliases=tuple((alias, "") for alias in (name, *aliases)),
        labelled=labelled,
        **more,
    )


_WARMED: dict[str, Any] = {"has_memories": True, "is_warmed": True}
# The columns of the fitted model of the edge stand in this order.
OPTIMIZERS: tuple[OptimizerSpec, ...] = (
    OptimizerSpec(
        name="adamw",
        family="adaptive",
        aliases=(("adamw", ""), ("adam", "weight decay decoupled")),
        first_step=("adam_epsilon", "max_grad_norm", "weight_decay"),
        make=makers.adamw,
        follow_adam="all",
        stepped_by="AdamW",
        by_rows=makers.adam_rows,
        rates=_swept(0.016, 0.032, 1.0),
        needs_warmup=True,
        labelled="lab",
        is_adam_kin=True,
        **_WARMED,
    ),
    OptimizerSpec(  # trainers that say Adam mostly decouple the decay, so files are read as AdamW
        name="adam",
        family="adaptive",
        aliases=(),
        first_step=("adam_epsilon", "max_grad_norm", "weight_decay"),
        make=makers.adam,
        follow_adam="all",
        stepped_by="Adam",
        rates=_swept(0.016, 0.032, 1.0),
        needs_warmup=True,
        labelled="lab",
        counts_as="adamw",
        is_adam_kin=True,
        couples_decay=True,
        **_WARMED,
    ),
    OptimizerSpec(
        name="lion",
        family="sign-like",
        aliases=(("lion", ""),),
        first_step=("weight_decay",),
        make=makers.lion,
        stepped_by="Lion",
        by_rows=makers.lion_rows,
        rates=_swept(
            0.002,
            0.004,
            0.34,
            f"Chen et al., 2023 (arXiv 2302.06675): 3 to 10 times below AdamW's; {_SWEEP}",
        ),
        needs_warmup=True,
        labelled="lab",
        **_WARMED,
    ),
    OptimizerSpec(
        name="sgd",
        family="plain",
        aliases=(("sgd", ""),),
        make=makers.sgd,
        stepped_by="SGD",
        by_rows=makers.sgd_rows,
        labelled="lab",
    ),
    OptimizerSpec(
        name="adafactor",
        family="adaptive",
        aliases=(("adafactor", ""),),
        make=makers.adafactor,
        stepped_by="Adafactor",
        rates=RateRange(
            source="Raffel et al., 2020, and PaLM: 1e-2 times the weights' size, then 1/√t"
        ),
        labelled="lab",
    ),
    OptimizerSpec(
        name="muon",
        family="orthogonal",
        aliases=(("normuon", "without its rows' second moment"), ("muon", "")),
        make=makers.muon,
        first_step=("max_grad_norm", "weight_decay", "muon_scale"),
        follow_adam="some",
        stepped_by="Muon",
        rates=_swept(0.064, 0.128, None, f"{_SWEEP}; Jordan et al., 2024: 0.02"),
        labelled="lab",
        has_scales=True,
    ),
    _adam_kin(
        "nadamw",
        "nadam",
        makers.nadamw,
        first_step=("adam_beta1", "adam_epsilon", "max_grad_norm", "weight_decay"),
        stepped_by="NAdam",
        by_rows=makers.nadam_rows,
        looks_ahead=True,
    ),
    _adam_kin("cautious", "cautious", makers.cautious, stepped_by="Cautious", looks_ahead=True),
    _adam_kin("mars", "mars", makers.mars, stepped_by="Mars", rates=_swept(0.016, 0.032, 2.0)),
    _adam_kin("adam_mini", "adam_mini", None, rates=RateRange()),
    _unmade("sophia", "adaptive", rates=_swept(0.008, 0.016, 1.0), needs_warmup=True, **_WARMED),
    _unmade(
        "soap",
        "adaptive",
        rates=_swept(0.016, None, 2.0, f"{_SWEEP}; Vyas et al., 2024 (arXiv 2409.11321)"),
        needs_warmup=True,
        **_WARMED,
    ),
    _unmade("kron", "orthogonal", "psgd", rates=_swept(0.002, 0.004, 0.34), needs_warmup=True),
    _unmade("scion", "orthogonal", rates=_swept(0.032, 0.064, None), has_scales=True),
    _unmade("mudam", "orthogonal", **_WARMED),
    _unmade(
        "lamb",
        "layerwise",
        follow_adam="all",
        rates=RateRange(
            over_adamw=12.0,
            source="You et al., 2020 (arXiv 1904.00962): 5e-3 for BERT-large at 32k sequences",
        ),
        needs_warmup=True,
        labelled="none",
        **_WARMED,
    ),
    OptimizerSpec(name="other", family="adaptive", aliases=()),  # one that no row above is
)


@cache
def optimizer_spec(name: str) -> OptimizerSpec:
    """Return the table's row for a recipe's optimizer."""
    return next(spec for spec in OPTIMIZERS if spec.name == name)


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


def optimizer_of_class(kind: type) -> OptimizerSpec | None:
    """Return the row of the optimizer that a class steps, such as `torch.optim.AdamW`."""
    return next((spec for spec in OPTIMIZERS if spec.stepped_by == kind.__name__), None)


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
