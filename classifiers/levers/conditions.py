"""Values of levers, and why a lever is on already or does not apply to a model and recipe."""

from __future__ import annotations

from collections.abc import Callable

from rksp.models.declared import Declared
from rksp.optimizers.table import optimizer_spec
from rksp.recipe import Recipe

_UNKNOWN = "the model's configuration is not known"


def fixed(value: object) -> Callable[[Declared, Recipe], object]:
    """Return a value that is the same for every model and recipe."""
    return lambda declared, recipe: value


def is_parallel(declared: Declared, recipe: Recipe) -> str | None:
    """Say that attention and feed-forward read the same state already."""
    if declared.config is None:
        return _UNKNOWN
    return "the blocks are parallel already" if declared.is_parallel else None


def scales_by_depth(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the last matrices of the branches start smaller already, as GPT-2's do."""
    if declared.config is None:
        return _UNKNOWN
    is_on = declared.get("scale_residual_init") is True or declared.name == "gpt2"
    return "the output layers are scaled already" if is_on else None


def normalizes_qk(declared: Declared, recipe: Recipe) -> str | None:
    """Say that queries and keys are normalized, or that there is no attention to normalize."""
    if declared.config is None:
        return _UNKNOWN
    if declared.normalizes_qk:
        return "queries and keys are normalized already"
    return None if declared.heads else "the model has no attention"


def lacks_attention(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the model is not known to have attention."""
    return None if declared.heads else "the model is not known to have attention"


def is_untied(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the output layer has weights of its own."""
    return None if declared.is_tied else "the output layer is no embedding"


def initialized(factor: float) -> Callable[[Declared, Recipe], object]:
    """Return a multiple of the model's own initial deviation, 0.02 where it states none."""

    def value(declared: Declared, recipe: Recipe) -> object:
        return float(f"{factor * (declared.init_std or 0.02):.3g}")

    return value


def is_unknown(declared: Declared, recipe: Recipe) -> str | None:
    """Say that there is no configuration to change."""
    return _UNKNOWN if declared.config is None else None


def normalizes_branches(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the blocks normalize what their branches add."""
    if declared.config is None:
        return _UNKNOWN
    is_on = declared.family.branch_norm
    return "the model normalizes its branches already" if is_on else None


def _warm(declared: Declared, recipe: Recipe) -> str | None:
    if not optimizer_spec(recipe.optimizer).is_warmed:
        return f"a warm-up does not protect {recipe.optimizer}"
    return None


def is_warmed_long(declared: Declared, recipe: Recipe) -> str | None:
    """Say that three times the warm-up is none, does not fit, or protects nothing."""
    if recipe.warmup_steps == 0:
        return "the recipe has no warm-up"
    if 3 * recipe.warmup_steps > recipe.max_steps / 2:
        return "three times the warm-up is more than half of the run"
    return _warm(declared, recipe)


def is_warmed(declared: Declared, recipe: Recipe) -> str | None:
    """Say that there is a warm-up, or that none would protect this optimizer."""
    if recipe.warmup_steps:
        return "the recipe has a warm-up"
    return _warm(declared, recipe)


def _memories(declared: Declared, recipe: Recipe) -> str | None:
    has = optimizer_spec(recipe.optimizer).has_memories
    return None if has else f"{recipe.optimizer} has no such memory"


def forgets_fast(declared: Declared, recipe: Recipe) -> str | None:
    """Say that Adam's first moment forgets as fast already, or that there is none."""
    return "beta1 is as low already" if recipe.adam_beta1 <= 0.8 else _memories(declared, recipe)


def forgets_squares_fast(declared: Declared, recipe: Recipe) -> str | None:
    """Say that Adam's second moment forgets as fast already, or that there is none."""
    return "beta2 is as low already" if recipe.adam_beta2 <= 0.95 else _memories(declared, recipe)


def clips_low(declared: Declared, recipe: Recipe) -> str | None:
    """Say that gradients are clipped as low already, or not at all."""
    if recipe.max_grad_norm is None:
        return "the recipe does not clip"
    return "the recipe clips as low already" if recipe.max_grad_norm <= 0.1 else None


def clips(declared: Declared, recipe: Recipe) -> str | None:
    """Say that gradients are clipped already."""
    return None if recipe.max_grad_norm is None else "the recipe clips already"


def is_ramped(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the batch is no single number."""
    return "the batch is ramped" if recipe.batch_ramp else None


def has_z_loss(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the recipe has a z-loss."""
    return "the recipe has a z-loss" if recipe.z_loss else None


def decays_weights(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the recipe decays its weights."""
    return "the recipe decays its weights" if recipe.weight_decay else None


def decays_rate(declared: Declared, recipe: Recipe) -> str | None:
    """Say that the rate decays already."""
    return None if recipe.schedule == "constant" else "the rate decays already"


def is_optimizer(name: str) -> Callable[[Declared, Recipe], str | None]:
    """Return the test of a recipe that has this optimizer already."""
    return lambda declared, recipe: (
        f"the optimizer is {name} already" if recipe.optimizer == name else None
    )
