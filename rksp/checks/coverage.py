"""What rksp cannot judge, said instead of judged as something else."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Check, Observation
from rksp.checks.evidence import CheckEvidence
from rksp.checks.finding import Level
from rksp.checks.published import MEASURED_OPTIMIZERS

_SEEN_OBJECTIVES = ("lm", "mlm", "seq2seq", "classification")


def _not_covered(evidence: CheckEvidence) -> Iterator[Observation]:
    parts = list(_parts(evidence))
    if parts:
        yield Observation(
            level=Level.NOTE,
            message=f"The labelled runs behind P(failed) hold no {', no '.join(parts)}.",
            value=float(len(parts)),
        )


def _parts(evidence: CheckEvidence) -> Iterator[str]:
    recipe = evidence.recipe
    if recipe.optimizer not in MEASURED_OPTIMIZERS:
        yield f"optimizer {recipe.optimizer}"
    if recipe.precision == "fp8":
        yield "fp8"
    if recipe.peft != "none":
        yield "adapters"
    if recipe.objective not in _SEEN_OBJECTIVES:
        yield f"objective {recipe.objective}"
    if recipe.batch_ramp:
        yield "batch ramp"
    if evidence.scales_rates_by_width:
        yield "rates scaled by width (μP)"


CHECKS = (
    Check(
        code="RKSP901",
        name="not-covered",
        level=Level.NOTE,
        title="Part of the recipe is outside what rksp can judge",
        measures=(
            "The optimizer, precision, adapters, objective, batch ramp and scaling of rates "
            "against those of the labelled runs."
        ),
        why=(
            "A probability about another recipe is no answer. The named checks still hold; what "
            "they cannot judge, they leave out."
        ),
        source="the card of the fitted classifier",
        healthy="a recipe of the kinds in the classifier's card",
        fix="Read the named checks, and confirm with a short run (rksp confirm).",
        failing="--optimizer lamb",
        stable="--optimizer adamw",
        look=_not_covered,
    ),
)
