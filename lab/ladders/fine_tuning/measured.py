"""Measure a model before it is fine-tuned, in the space that is trained."""

from __future__ import annotations

from dataclasses import asdict

from torch import nn

from lab.ladders.fine_tuning.spec import FineTuningSpec
from rksp.measure.gradient import measure_gradient

_EVIDENCE_SEED = 1_000_003  # separates these batches from the training batches
# The columns of the table; those after the gradient's are of runs that rksp 0.11 measured: what a
# few steps along the first update do, and the drift of the old task's predictions after one.
MEASURED = (
    *("loss", "grad_norm", "grad_rms", "grad_max", "update_rms"),
    *("critical_rate", "output_slope", "overshoot"),
    *("drift_1e-04", "drift_1e-03", "drift_1e-02"),
)


def measure_start(model: nn.Module, spec: FineTuningSpec) -> dict[str, float | None]:
    """Measure the first gradient of a model, which is left unchanged; see `MEASURED`."""
    seed = spec.seed + _EVIDENCE_SEED
    batch, _ = spec.new_task("training").batches(2, spec.recipe.batch_size, seed=seed)
    found = asdict(measure_gradient(model, batch))
    return {name: found.get(name) for name in MEASURED}
