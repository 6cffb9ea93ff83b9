"""Measure how far the first update moves a trained model from what it predicted before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.datasets.batch import Batch, run_pass
from rksp.ground.model import definite
from rksp.measure.gradient import without_gradients
from rksp.measure.response import first_direction, moving
from rksp.models.as_found import evaluating
from rksp.models.streaming.supply import square_sum
from rksp.recipe import Recipe

DRIFT_RATE = 1e-3  # at which the drift is told


def measure_drift(
    model: nn.Module,
    same: Batch,
    recipe: Recipe,
    old: Batch,
    rates: Sequence[float],
    *,
    shown: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> list[float | None]:
    """Return the drift after one update at each rate.

    It is the KL divergence, in nats a position, of the predictions on old data from those of the
    unmoved model. It grows with the square of the rate while the update is small.

    Args:
        model: The trained model; it is left unchanged.
        same: The batch of the gradient, of the new task.
        recipe: The recipe; its learning rate is ignored.
        old: Data of what the model could do before.
        rates: Learning rates.
        shown: Shows the model as one of the old data, where its head is another.

    Returns:
        A drift a rate; None where there is no gradient.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model), without_gradients(params):
        run_pass(model, same).total.backward()
        present = [p for p in params if p.grad is not None]
        norm = math.sqrt(sum(square_sum(definite(p.grad)) for p in present))
        if not 0 < norm < math.inf:
            return [None] * len(rates)
        direction, _ = first_direction(model, recipe, norm, present)
        before = _log_probabilities(shown(model), old)
        drifts: list[float | None] = []
        with moving(present, direction) as steer:
            for rate in rates:
                steer(rate)
                after = _log_probabilities(shown(model), old)
                drifts.append(
                    float(F.kl_div(after, before, reduction="batchmean", log_target=True))
                )
        return drifts


@torch.no_grad()
def _log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        return definite(run_pass(model, batch).output).float().log_softmax(-1).flatten(0, -2)
    finally:
        model.train(was_training)
