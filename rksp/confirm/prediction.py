"""The prediction of `rksp score` for a recipe before it is trained, over several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rksp.assessment.pipeline import Evaluation
from rksp.documents.confirm import PredictionReport
from rksp.ground.model import definite


def mean_prediction(evaluations: Sequence[Evaluation], threshold: float) -> PredictionReport:
    """Average the predictions over the seeds; give a verdict only if every seed has one."""
    risks = [evaluation.risk for evaluation in evaluations]
    reasons = sorted(
        {e.risk_missing for e in evaluations if e.risk_missing}
        | {reason for risk in risks if risk for reason in risk.reasons}
    )
    told = [risk for risk in risks if risk is not None and risk.probability_failed is not None]
    if len(told) < len(risks):
        return PredictionReport(
            probability_failed=None,
            low=None,
            high=None,
            verdict="not assessed" if None in risks else "cannot tell",
            reasons=reasons,
            start_here=None,
            do_not_exceed=None,
            threshold=threshold,
        )
    probability = statistics.fmean(definite(risk.probability_failed) for risk in told)
    is_sure = all(risk.verdict in ("ok", "risk") for risk in told)
    verdict = "risk" if probability >= threshold else "ok" if is_sure else "caution"
    return PredictionReport(
        probability_failed=probability,
        low=statistics.fmean(definite(risk.probability_failed_low) for risk in told),
        high=statistics.fmean(definite(risk.probability_failed_high) for risk in told),
        verdict="cannot tell" if reasons else verdict,
        reasons=reasons,
        start_here=_least([risk.start_here for risk in told]),
        do_not_exceed=_least([risk.do_not_exceed for risk in told]),
        threshold=threshold,
        levers=told[0].levers,
    )


def _least(rates: Sequence[float | None]) -> float | None:
    """Return the lowest rate over the seeds, or None if a seed has none."""
    given = [rate for rate in rates if rate is not None]
    return min(given) if len(given) == len(rates) else None
