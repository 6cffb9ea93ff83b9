"""Faults of a run's settings and data: its rate, its routers' losses, its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from rksp.datasets.batch import IGNORED, Batch
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.text import words
from rksp.recipe import Recipe
from rksp.watch.faults.base import Fault
from rksp.watch.moment import Moment


@dataclass(eq=False)
class LargeRate(Fault):
    """Multiplies the learning rate.

    With `step` 0 the recipe itself is changed, so that everything that reads it sees the rate. With
    a later step the optimizer's rate is changed, between backward and update.

    Args:
        factor: Factor on the rate.
        step: The first step at which the factor holds.
    """

    name = "large_rate"
    factor: PositiveFloat = 10.0
    step: NonNegativeInt = 0
    _set: dict[int, float] = field(init=False, default_factory=dict)

    def recipe(self, recipe: Recipe) -> Recipe:
        if self.step > 0:
            return recipe
        if recipe.learning_rate is None:
            raise InputError(
                "Fault 'large_rate' multiplies the learning rate, and the recipe has none; "
                "give --learning-rate."
            )
        return recipe.model_copy(update={"learning_rate": recipe.learning_rate * self.factor})

    def after_backward(self, moment: Moment) -> None:
        if self.step == 0 or moment.step < self.step or moment.optimizer is None:
            return
        for index, group in enumerate(moment.optimizer.param_groups):
            # Without this check the factor would accumulate in a loop that never sets the rate.
            if self._set.get(index) != group["lr"]:
                group["lr"] *= self.factor
                self._set[index] = group["lr"]


# Weights of the balance loss and of the routers' z-loss, in the configurations of transformers.
COEFFICIENTS = words(
    "router_aux_loss_coef router_z_loss_coef moe_aux_loss_coeff aux_loss_alpha aux_loss_coef "
    "z_loss_coef"
)


@dataclass(eq=False)
class AuxOff(Fault):
    """Sets the coefficients of the routers' auxiliary losses to zero.

    The fault changes configurations and the modules that copied the coefficients at construction.

    Args:
        step: The first step without the losses.
    """

    name = "aux_off"
    step: NonNegativeInt = 0
    _switches: list[Callable[[], None]] = field(init=False, default_factory=list)

    def bind(self, model: nn.Module, *, seed: int) -> None:
        self._switches = [switch for module in model.modules() for switch in _switches(module)]
        if not self._switches:
            raise NotCovered(
                "Fault 'aux_off' needs routers with an auxiliary loss, and this model trains "
                "without one; choose another fault or give the loss a coefficient."
            )

    def arm(self, moment: Moment) -> tuple[()]:
        if moment.step >= self.step:
            for switch in self._switches:
                switch()
            self._switches = []
        return ()


def _switches(module: nn.Module) -> list[Callable[[], None]]:
    config: Any = getattr(module, "config", None)
    if hasattr(module, "aux_loss") and hasattr(config, "model_copy"):  # frozen and shared
        names = [name for name in COEFFICIENTS if getattr(config, name, 0.0)]
        zeros = config.model_copy(update=dict.fromkeys(names, 0.0))
        return [lambda: setattr(module, "config", zeros)] if names else []
    owners: list[object] = [module]
    if config is not None and not hasattr(config, "model_copy"):
        owners += [config, getattr(config, "text_config", None)]
    return [
        partial(setattr, owner, name, 0.0)
        for owner in owners
        for name in COEFFICIENTS
        if isinstance(getattr(owner, name, None), float) and getattr(owner, name)
    ]


@dataclass(eq=False)
class BadBatches(Fault):
    """Exchanges the batches of some steps for bad ones.

    Kinds:
        labels: The labels that count are permuted within the batch (label noise).
        repeated: One token stands at every position, as input and as label, as in a shard of
            padding. It makes the gradient small, and the batches after it make it large.

    Args:
        step: First step.
        steps: How many.
        kind: How they are bad.
    """

    name = "bad_batches"
    step: NonNegativeInt = 10
    steps: PositiveInt = 10
    kind: Literal["labels", "repeated"] = "labels"

    def batches(self, batches: Sequence[Batch], *, per_step: int, seed: int) -> Sequence[Batch]:
        start, stop = self.step * per_step, (self.step + self.steps) * per_step
        generator = torch.Generator().manual_seed(seed)
        bad = [_changed(batch, self.kind, generator) for batch in batches[start:stop]]
        return [*batches[:start], *bad, *batches[stop:]]


def _changed(batch: Batch, kind: str, generator: torch.Generator) -> Batch:
    inputs, labels = batch.inputs, batch.labels
    error = NotCovered(
        "Fault 'bad_batches' changes tensors of tokens and labels and the batches hold others; "
        "choose another fault."
    )
    if not isinstance(labels, Tensor) or not isinstance(inputs, Tensor):
        raise error
    if kind == "repeated":
        if inputs.is_floating_point():
            raise error
        token = inputs.flatten()[0]
        labels = labels.where(labels == IGNORED, token)
        return replace(batch, inputs=token.expand_as(inputs).clone(), labels=labels)
    counts, labels = labels != IGNORED, labels.clone()
    held = labels[counts]
    labels[counts] = held[torch.randperm(len(held), generator=generator).to(held.device)]
    return replace(batch, labels=labels)
