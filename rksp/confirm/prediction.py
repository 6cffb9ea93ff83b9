"""The prediction of `rksp score` for a recipe before it is trained, over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rksp.assessment.pipeline import Evaluation
from rksp.documents.confirm import PredictionReport


def mean_prediction(evaluations: Sequence[Evaluation], threshold: float) -> PredictionReport:
    """Average the predictions over the seeds; give a verdict only if every seed has one."""
    risks = [evaluation.risk for evaluation in evaluations]
    reasons = sorted(
        {e.risk_missing for e in evaluations if e.risk_missing}
        | {reason for risk in risks if risk for reason in risk.reasons}
    )
    is_missing = None in risks
    if is_missing or any(risk.probability_failed is None for risk in risks):
        return PredictionReport(
            probability_failed=None,
            low=None,
            high=None,
            verdict="not assessed" if is_missing else "cannot tell",
            reasons=reasons,
            start_here=None,
            do_not_exceed=None,
            threshold=threshold,
        )
    probability = statistics.fmean(risk.probability_failed for risk in risks)
    is_sure = all(risk.verdict in ("ok", "risk") for risk in risks)
    verdict = "risk" if probability >= threshold else "ok" if is_sure else "caution"
    return PredictionReport(
        probability_failed=probability,
        low=statistics.fmean(risk.probability_failed_low for risk in risks),
        high=statistics.fmean(risk.probability_failed_high for risk in risks),
        verdict="cannot tell" if reasons else verdict,
        reasons=reasons,
        start_here=_least([risk.start_here for risk in risks]),
        do_not_exceed=_least([risk.do_not_exceed for risk in risks]),
        threshold=threshold,
    )


def _least(rates: Sequence[float | None]) -> float | None:
    """Return the lowest rate over the seeds, or None if a seed has none."""
    return None if None in rates else min(rates)
