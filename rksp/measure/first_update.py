"""Compute the first update of a recipe's optimizer, for whole weights or rows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rksp.models.streaming.gradients import Gradients, Key, part_shape
from rksp.optimizers import make_optimizer, optimizer_of_class
from rksp.optimizers.rows import RowRule
from rksp.recipe import Recipe

PROBE_RATE = 1e-3  # rate of the step that gives the direction, which is then divided by it


def clipping(recipe: Recipe, norm: float) -> float:
    """Return the factor by which a recipe scales a gradient of this norm."""
    limit = recipe.max_grad_norm
    return limit / norm if limit is not None and norm > limit else 1.0


class FirstUpdate:
    """The first update of an optimizer per unit rate, from gradients kept as factors.

    Where the optimizer has a rule of `rksp.optimizers.rows`, rows of the update need only the same
    rows of the gradient, and decay adds −λθ. Any other optimizer takes a step on the whole weight.

    Args:
        model: A skeleton or a model; it tells which weights the optimizer trains and how.
        gradients: Gradients of its weights.
        recipe: The recipe; its learning rate is ignored.
        norm: Norm of all gradients together, for clipping.
    """

    def __init__(self, model: nn.Module, gradients: Gradients, recipe: Recipe, norm: float) -> None:
        self.gradients, self.clip = gradients, clipping(recipe, norm)
        self._kinds = kinds_of(model, recipe)

    def moves(self, key: Key) -> bool:
        """Tell whether a weight has an update.

        An expert without a gradient has one if its stack decays and another expert has a gradient.
        """
        name, index = key
        if key in self.gradients:
            return True
        decays = self._kinds[name][1].get("weight_decay", 0.0) > 0 if name in self._kinds else False
        return index is not None and decays and name in self.gradients.names

    def is_by_rows(self, name: str) -> bool:
        """Tell whether rows can be computed without the rest of the weight."""
        return is_by_rows(self._kinds[name])

    def needs_values(self, name: str) -> bool:
        """Tell whether the update depends on the weight, and not only on its gradient."""
        kind, options = self._kinds[name]
        return _row_rule(kind) is None or options.get("weight_decay", 0.0) > 0

    @torch.no_grad()
    def rows(
        self, key: Key, start: int, stop: int, weight: Tensor, gradient: Tensor | None = None
    ) -> Tensor:
        """Compute the update of the rows `start … stop`, whose values are `weight`.

        Args:
            key: Name of the weight, and index of the expert or None.
            start: First row.
            stop: Row after the last.
            weight: The rows; may be on the meta device if `needs_values` is false.
            gradient: Gradient of the same rows, unclipped; default from the factors.

        Returns:
            The update per unit rate, in the shape of `weight`.
        """
        kind, options = self._kinds[key[0]]
        if gradient is None:
            gradient = self.gradient(key, start, stop, tuple(weight.shape))
        return step_of((kind, options), gradient * self.clip, weight)

    def gradient(self, key: Key, start: int, stop: int, shape: tuple[int, ...]) -> Tensor:
        """Compute rows of a gradient; they are zero for an expert that no token chose."""
        if key not in self.gradients:
            return torch.zeros(part_shape(shape, start, stop))
        return self.gradients.fill(key, start, stop, torch.empty(part_shape(shape, start, stop)))


Kind = tuple[type[torch.optim.Optimizer], Mapping[str, Any]]


def kinds_of(model: nn.Module, recipe: Recipe) -> dict[str, Kind]:
    """Return the optimizer and its options for every trained weight by name."""
    optimizer = make_optimizer(model, recipe.model_copy(update={"learning_rate": PROBE_RATE}))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (type(part), {k: v for k, v in group.items() if k != "params"})
        for part in getattr(optimizer, "parts", (optimizer,))
        for group in part.param_groups
        for parameter in group["params"]
    }


def is_by_rows(kind: Kind) -> bool:
    """Tell whether `step_of` gives rows of an update from the same rows of the gradient."""
    return _row_rule(kind[0]) is not None


def step_of(kind: Kind, gradient: Tensor, weight: Tensor) -> Tensor:
    """Compute the update per unit rate of a weight or some rows of it.

    Args:
        kind: As in `kinds_of`.
        gradient: The clipped gradient; its memory is reused for the result.
        weight: Values of the weight.

    Returns:
        The update, in the shape of `weight`.
    """
    optimizer, options = kind
    rule = _row_rule(optimizer)
    if rule is None:
        return _step(optimizer, options, weight, gradient)
    found = rule(gradient, options)
    decay = options.get("weight_decay", 0.0)
    return found.sub_(weight, alpha=decay) if decay else found


def _row_rule(optimizer: type[torch.optim.Optimizer]) -> RowRule | None:
    """Return how rows of its update are computed; None if it needs the whole weight."""
    spec = optimizer_of_class(optimizer)
    return None if spec is None else spec.by_rows


def _step(
    kind: Callable[..., torch.optim.Optimizer],
    options: Mapping[str, Any],
    weight: Tensor,
    gradient: Tensor,
) -> Tensor:
    """Take one optimizer step with one weight; return the change per unit rate."""
    parameter = nn.Parameter(weight.detach().clone())
    parameter.grad = gradient
    with torch.enable_grad():
        kind([{"params": [parameter], **options}], lr=options["lr"]).step()
    return (parameter.detach() - weight) / options["lr"]
