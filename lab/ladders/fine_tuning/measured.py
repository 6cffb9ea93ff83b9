"""Measure a model before it is fine-tuned, in the space that is trained."""

from __future__ import annotations

from torch import nn

from lab.ladders.fine_tuning.model import OldAbility
from lab.ladders.fine_tuning.spec import FineTuningSpec
from lab.ladders.response import measure_drift, measure_response
from rksp.datasets.batch import Batch

_EVIDENCE_SEED = 1_000_003  # separates these batches from the training batches
DRIFT_RATES = (1e-4, 1e-3, 1e-2)
RESPONSE = (
    *("loss", "grad_norm", "grad_rms", "grad_max", "update_rms"),
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
    drifts = measure_drift(model, same, recipe, old, DRIFT_RATES, shown=ability)
    return found | {
        f"drift_{rate:.0e}": drift for rate, drift in zip(DRIFT_RATES, drifts, strict=True)
    }
