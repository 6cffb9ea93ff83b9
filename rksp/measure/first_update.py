"""The first update of a recipe's optimizer, weight by weight and any rows of a weight alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rksp.models.streaming.gradients import Gradients, Key, part_shape
from rksp.optimizers import make_optimizer
from rksp.optimizers.lion import Lion
from rksp.recipe import Recipe

PROBE_RATE = 1e-3  # of the step that reveals the update direction; the direction is per unit rate


def clipping(recipe: Recipe, norm: float) -> float:
    """What a recipe multiplies a gradient of this norm by."""
    limit = recipe.max_grad_norm
    return limit / norm if limit is not None and norm > limit else 1.0


class FirstUpdate:
    """The update per unit rate that an optimizer makes first, from gradients kept as factors.

    AdamW's is −g / (|g| + ε), because its moments are corrected to g and g²; Lion's −sign(g);
    SGD's −g, its momentum empty; decay adds −λθ to each. Rows of these need nothing but the same
    rows of the gradient. Any other optimizer takes a step on the whole weight.

    Args:
        model: A skeleton or a model, for what its optimizer does with which weight.
        gradients: Of its weights.
        recipe: Its learning rate is not looked at.
        norm: Of all gradients together, for clipping.
    """

    def __init__(self, model: nn.Module, gradients: Gradients, recipe: Recipe, norm: float) -> None:
        self.gradients, self.clip = gradients, clipping(recipe, norm)
        self._kinds = kinds_of(model, recipe)

    def moves(self, key: Key) -> bool:
        """Whether a weight has an update: all of it has where any part has a gradient."""
        name, index = key
        if key in self.gradients:
            return True
        decays = self._kinds[name][1].get("weight_decay", 0.0) > 0 if name in self._kinds else False
        return index is not None and decays and name in self.gradients.names

    def is_by_rows(self, name: str) -> bool:
        """Whether rows can be had without the rest of the weight."""
        return self._kinds[name][0] in _BY_ROWS

    def needs_values(self, name: str) -> bool:
        """Whether the update depends on the weight, and not on its gradient alone."""
        kind, options = self._kinds[name]
        return kind not in _BY_ROWS or options.get("weight_decay", 0.0) > 0

    @torch.no_grad()
    def rows(
        self, key: Key, start: int, stop: int, weight: Tensor, gradient: Tensor | None = None
    ) -> Tensor:
        """The update of the rows `start … stop`, whose values are `weight`.

        Args:
            weight: May be on the meta device where `needs_values` says no.
            gradient: Of the same rows, unclipped; default taken from the factors.
        """
        kind, options = self._kinds[key[0]]
        if gradient is None:
            gradient = self.gradient(key, start, stop, tuple(weight.shape))
        return step_of((kind, options), gradient * self.clip, weight)

    def gradient(self, key: Key, start: int, stop: int, shape: tuple[int, ...]) -> Tensor:
        """Rows of a gradient, zero for an expert that no token chose."""
        if key not in self.gradients:
            return torch.zeros(part_shape(shape, start, stop))
        return self.gradients.fill(key, start, stop, torch.empty(part_shape(shape, start, stop)))


Kind = tuple[type[torch.optim.Optimizer], Mapping[str, object]]


def kinds_of(model: nn.Module, recipe: Recipe) -> dict[str, Kind]:
    """The optimizer of every trained weight by name, and its options."""
    optimizer = make_optimizer(model, recipe.model_copy(update={"learning_rate": PROBE_RATE}))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (type(part), {k: v for k, v in group.items() if k != "params"})
        for part in getattr(optimizer, "parts", (optimizer,))
        for group in part.param_groups
        for parameter in group["params"]
    }


def step_of(kind: Kind, gradient: Tensor, weight: Tensor) -> Tensor:
    """The update per unit rate of a weight or some rows of one.

    Args:
        kind: As in `kinds_of`.
        gradient: Clipped; its memory is used for the result.
        weight: Its values.
    """
    optimizer, options = kind
    if optimizer not in _BY_ROWS:
        return _step(optimizer, options, weight, gradient)
    found = _BY_ROWS[optimizer](gradient, options)
    decay = options.get("weight_decay", 0.0)
    return found.sub_(weight, alpha=decay) if decay else found


def _adam(gradient: Tensor, options: Mapping[str, object]) -> Tensor:
    return gradient.div_(gradient.abs().add_(options["eps"])).neg_()


def _lion(gradient: Tensor, options: Mapping[str, object]) -> Tensor:
    return gradient.sign_().neg_()


def _sgd(gradient: Tensor, options: Mapping[str, object]) -> Tensor:
    return gradient.neg_()


_BY_ROWS = {torch.optim.AdamW: _adam, Lion: _lion, torch.optim.SGD: _sgd}


def _step(
    kind: type[torch.optim.Optimizer],
    options: Mapping[str, object],
    weight: Tensor,
    gradient: Tensor,
) -> Tensor:
    """The step that an optimizer takes with one weight, per unit rate."""
    parameter = nn.Parameter(weight.detach().clone())
    parameter.grad = gradient
    with torch.enable_grad():
        kind([{"params": [parameter], **options}], lr=options["lr"]).step()
    return (parameter.detach() - weight) / options["lr"]
