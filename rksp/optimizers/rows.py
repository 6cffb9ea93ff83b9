"""Compute the first update of an optimizer for some rows of a weight, from their gradient alone.

Each function takes the clipped gradient and the options of the parameter group. It returns the
update per unit rate, without the decay, in the memory of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

RowRule = Callable[["Tensor", Mapping[str, Any]], "Tensor"]


def adam_rows(gradient: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return −g / (|g| + ε): the moments are corrected to g and g²."""
    return gradient.div_(gradient.abs().add_(options["eps"])).neg_()


def nadam_rows(gradient: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return AdamW's times 1 + β₁ / (1 + β₁), as it looks one step ahead."""
    beta1 = options["betas"][0]
    return adam_rows(gradient, options).mul_(1 + beta1 / (1 + beta1))


def lion_rows(gradient: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return −sign(g)."""
    return gradient.sign_().neg_()


def sgd_rows(gradient: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return −g: the momentum is empty."""
    return gradient.neg_()
