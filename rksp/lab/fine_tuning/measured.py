"""Measure a model before it is fine-tuned, in the space that is trained."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.batch import Batch, run_pass
from rksp.ground.model import definite
from rksp.lab.fine_tuning.model import OldAbility
from rksp.lab.fine_tuning.spec import FineTuningSpec
from rksp.measure.response import evaluating, first_direction, measure_response, moving
from rksp.recipe import Recipe

_EVIDENCE_SEED = 1_000_003  # separates these batches from the training batches
DRIFT_RATES = (1e-4, 1e-3, 1e-2)
RESPONSE = (
    *("loss", "grad_norm", "grad_rms", "grad_max", "update_rms", "descent"),
    *("critical_rate", "output_slope", "overshoot"),
)
MEASURED = (*RESPONSE, *(f"drift_{rate:.0e}" for rate in DRIFT_RATES))


def measure_start(
    model: nn.Module, spec: FineTuningSpec, ability: OldAbility, old: Batch
) -> dict[str, float | None]:
    """Measure the response to the recipe's first update, and the drift from the trained model.

    Args:
        model: The model before the first step; it is left unchanged.
        spec: The ladder, with the new task and the recipe.
        ability: Shows the model as one of its old task.
        old: A held-out batch of the old task.

    Returns:
        The names of `MEASURED`; None where nothing could be measured. `drift_1e-03` is the KL
        divergence, in nats a position, of the old task's predictions from those of the unmoved
        model after one update at a rate of 1e-3.
    """
    recipe = spec.recipe.model_copy(update={"learning_rate": 1.0})
    seed = spec.seed + _EVIDENCE_SEED
    same, fresh = spec.new_task("training").batches(2, recipe.batch_size, seed=seed)
    response = measure_response(model, same, fresh, recipe)
    found = {name: getattr(response, name) for name in RESPONSE}
    return found | _drift(model, same, recipe, ability, old)


def _drift(
    model: nn.Module, same: Batch, recipe: Recipe, ability: OldAbility, old: Batch
) -> dict[str, float | None]:
    params = [p for p in model.parameters() if p.requires_grad]
    drifts: dict[str, float | None] = {f"drift_{rate:.0e}": None for rate in DRIFT_RATES}
    with evaluating(model, params):
        run_pass(model, same).total.backward()
        present = [p for p in params if p.grad is not None]
        norm = math.sqrt(sum(float(definite(p.grad).double().square().sum()) for p in present))
        if not 0 < norm < math.inf:
            return drifts
        direction, _ = first_direction(model, recipe, norm, present)
        before = _log_probabilities(ability(model), old)
        with moving(present, direction) as steer:
            for rate in DRIFT_RATES:
                steer(rate)
                after = _log_probabilities(ability(model), old)
                drift = float(F.kl_div(after, before, reduction="batchmean", log_target=True))
                drifts[f"drift_{rate:.0e}"] = drift
    return drifts


@torch.no_grad()
def _log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        return definite(run_pass(model, batch).output).float().log_softmax(-1).flatten(0, -2)
    finally:
        model.train(was_training)
