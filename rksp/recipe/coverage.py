"""What of a recipe the labelled runs do not hold, so that rksp cannot judge it."""

from __future__ import annotations

from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec

SEEN_OBJECTIVES = ("lm", "mlm", "seq2seq", "classification")


def not_covered(recipe: Recipe) -> tuple[str, ...]:
    """Return the parts of a recipe that the runs of random initializations do not include.

    The fit has a column for every optimizer of the table whose runs are labelled, whoever's.
    """
    spec = optimizer_spec(recipe.optimizer)
    parts = {
        f"optimizer {recipe.optimizer}": spec.labelled == "none",
        f"weight decay inside {recipe.optimizer}": spec.couples_decay and recipe.weight_decay > 0,
        "adapters": recipe.peft != "none",
        f"objective {recipe.objective}": recipe.objective not in SEEN_OBJECTIVES,
        "batch ramp": bool(recipe.batch_ramp),
    }
    return tuple(part for part, is_part in parts.items() if is_part)


def uncovered(recipe: Recipe) -> list[str]:
    """Return a clause that says why rksp cannot judge a recipe, if there is a reason."""
    parts = not_covered(recipe)
    return [f"the labelled runs include no {', no '.join(parts)}"] if parts else []


def untuned(recipe: Recipe) -> list[str]:
    """Return a clause on what no run of fine-tuning has, where that is no name of its model."""
    return ["no run of fine-tuning is in fp8"] if recipe.precision == "fp8" else []
