"""The check of what rksp cannot judge."""

from __future__ import annotations

from collections.abc import Iterator

from rksp.checks.check import Observation, check
from rksp.checks.evidence import CheckEvidence
from rksp.recipe.coverage import not_covered


@check("RKSP901")
def _not_covered(evidence: CheckEvidence) -> Iterator[Observation]:
    # The model of fine-tuning says itself what its runs do not hold.
    parts = [] if not evidence.start.is_scratch else list(not_covered(evidence.recipe))
    if evidence.recipe.precision == "fp8":
        parts.append("fp8")
    if evidence.settings.scales_rates_by_width:
        parts.append("rates scaled by width (μP)")
    if parts:
        yield Observation(
            f"The labelled runs behind P(failed) include no {', no '.join(parts)}.",
            float(len(parts)),
        )
