"""The one table of optimizers: to add one, write its row in `optimizers.toml`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

from rksp.ground.errors import InputError
from rksp.ground.tables import check_arguments, known_word, packaged_toml, row_of
from rksp.recipe.optimizers import makers
from rksp.recipe.optimizers.makers import Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Labelled = Literal["lab", "public", "none"]
Family = Literal["adaptive", "plain", "sign-like", "orthogonal", "layerwise"]
Followed = Literal["all", "some", "none"]
Maker = Callable[["nn.Module", Settings], "Optimizer"]


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
            with what is lost if it is read as this optimizer, or ""; by default its name.
        follow_adam: Which parameters follow Adam, with its betas and its epsilon; of its kin all.
        make: Builds it over a model's trainable parameters. None: rksp knows the recipes of this
            optimizer, but cannot take its steps.
        stepped_by: Name of the class that takes the steps, as `make` says; empty if none is made.
        rates: Known peak learning rates.
        needs_warmup: False if runs without warm-up succeeded (T5 and PaLM had none with
            Adafactor), or if none is known.
        labelled: Which labelled runs hold it: those of the lab, only public ladders, or none.
        counts_as: The optimizer that stands for it in the labelled runs; empty for itself.
        is_adam_kin: Its edge differs from AdamW's by a fraction of a decade.
        has_memories: It has the two memories of Adam, which a warm-up fills.
        looks_ahead: As Nesterov did: the newest gradient weighs more the lower beta1 is.
        has_scales: Its update is scaled in one of the ways of `Recipe.muon_scale`.
        couples_decay: It adds the weight decay to a gradient that it then normalizes.
    """

    name: str
    family: Family = "adaptive"
    aliases: tuple[tuple[str, str], ...]
    make: Maker | None = None
    follow_adam: Followed = "none"
    stepped_by: str = ""
    rates: RateRange = RateRange()
    needs_warmup: bool = False
    labelled: Labelled = "none"
    counts_as: str = ""
    is_adam_kin: bool = False
    has_memories: bool = False
    looks_ahead: bool = False
    has_scales: bool = False
    couples_decay: bool = False


def _spec(name: str, row: dict[str, Any]) -> OptimizerSpec:
    where = f"optimizers.toml [{name}]"
    row = {"aliases": {name: ""}, "rates": {}} | row | dict.fromkeys(row.get("facts", ()), True)
    row.pop("facts", None)
    if row.get("is_adam_kin"):
        row.setdefault("follow_adam", "all")
    if isinstance(made := row.get("make"), dict):
        row.setdefault("stepped_by", made.get("kind", ""))
    row |= {"make": _function(row["make"], where)} if "make" in row else {}
    rates = row_of(RateRange, row["rates"], where=f"{where} rates")
    row |= {"name": name, "rates": rates, "aliases": tuple(row["aliases"].items())}
    return row_of(OptimizerSpec, row, where=where)


def _function(said: str | dict[str, Any], where: str) -> Any:
    if isinstance(said, str):
        known_word(said, vars(makers), where=where, noun="function")
        return getattr(makers, said)
    check_arguments(makers.made, said, where=where)
    return partial(makers.made, **said)


_ROWS = packaged_toml("rksp.recipe.optimizers", "optimizers.toml")
OPTIMIZERS: tuple[OptimizerSpec, ...] = tuple(_spec(name, row) for name, row in _ROWS.items())


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
            f"rksp scores a recipe with the optimizer {recipe.optimizer!r}, but cannot take its "
            f"steps; choose {made} to train."
        )
    return make(model, recipe)
