"""How the runs of a confirmation start: the model as a recipe trains it, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rksp.confirm.arms import Arm
from rksp.confirm.trial import in_precision
from rksp.ground.errors import InputError
from rksp.models.adapters import as_trained
from rksp.models.source import ModelSource
from rksp.optimizers.table import make_optimizer
from rksp.recipe import Recipe
from rksp.watch.faults.registry import make_fault


def check_trainable(source: ModelSource, recipe: Recipe) -> None:
    """Refuse what cannot be trained, or would be trained as something else.

    Raises:
        InputError: There is no rate, or neither a model of transformers nor a batch of its own.
    """
    if recipe.learning_rate is None:
        raise InputError("A confirmation trains, so it needs a learning rate; give --lr.")
    source.check_size()
    if source.config is None and source.batch is None:
        raise InputError(
            f"{source.target} comes without a batch, and rksp confirm has only text and images of "
            "its own; return (model, batches) from the factory."
        )


def starting_model(source: ModelSource, recipe: Recipe, seed: int) -> nn.Module:
    """Build a model as its run starts: with the recipe's adapters and precision, in training mode.

    Raises:
        InputError: The adapters cannot be built.
    """
    model = as_trained(source.build(seed), recipe, source.task, seed=seed)
    return in_precision(model, recipe).train()


def rehearse(
    source: ModelSource, recipe: Recipe, arms: Sequence[Arm], faults: Sequence[str]
) -> None:
    """Bind every intervention and fault to the model once, before an hour is spent on training."""
    for arm in arms:
        model = starting_model(source, recipe, source.seed)
        for line in faults:
            make_fault(line).bind(model, seed=0)
        if arm.interventions:
            optimizer = make_optimizer(model, recipe)
            for intervention in arm.make():
                intervention.bind(model, optimizer)
