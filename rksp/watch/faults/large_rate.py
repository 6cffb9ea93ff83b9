"""Fault: a learning rate that is too large."""

from __future__ import annotations

from rksp.ground.errors import InputError
from rksp.recipe import Recipe
from rksp.watch.faults.base import Fault
from rksp.watch.moment import Moment


class LargeRate(Fault):
    """Multiplies the learning rate.

    With `step` 0 the recipe itself is changed, so that everything that reads it sees the rate. With
    a later step the optimizer's rate is changed, between backward and update.

    Args:
        factor: Factor on the rate.
        step: The first step at which the factor holds.
    """

    name = "large_rate"

    def __init__(self, factor: float = 10.0, step: int = 0) -> None:
        if not factor > 0 or step < 0:
            raise InputError(
                f"Fault 'large_rate' needs factor > 0 and step >= 0, got factor={factor}, "
                f"step={step}."
            )
        self.factor, self.step = factor, step
        self._set: dict[int, float] = {}

    def recipe(self, recipe: Recipe) -> Recipe:
        """Multiply the recipe's learning rate if the factor holds from step 0 on."""
        if self.step > 0:
            return recipe
        if recipe.learning_rate is None:
            raise InputError(
                "Fault 'large_rate' multiplies the learning rate, and the recipe has none; "
                "give --learning-rate."
            )
        return recipe.model_copy(update={"learning_rate": recipe.learning_rate * self.factor})

    def after_backward(self, moment: Moment) -> None:
        """Multiply the optimizer's rate from a later `step` on."""
        if self.step == 0 or moment.step < self.step or moment.optimizer is None:
            return
        for index, group in enumerate(moment.optimizer.param_groups):
            # Without this check the factor would accumulate in a loop that never sets the rate.
            if self._set.get(index) != group["lr"]:
                group["lr"] *= self.factor
                self._set[index] = group["lr"]
