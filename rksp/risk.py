"""From features to an answer: how likely, why, and which learning rate is safe."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from rksp.classifiers.classifier import DivergenceClassifier, Prediction
from rksp.documents.score import Contribution, CurvePoint, RiskAssessment, Verdict
from rksp.features import FEATURES, FeatureVector, Tier

HORIZON_STEPS = 200  # the longest runs of the collection
# Rates looked at; a twentieth of a decade is 12 %.
_RATES = tuple(float(f"{10**decade:.4g}") for decade in np.arange(-7.0, 1.0001, 0.05))
_MEANINGS = {feature.name: feature.meaning for feature in FEATURES}


def assess(
    features: FeatureVector,
    classifier: DivergenceClassifier,
    *,
    learning_rate: float | None,
    threshold: float = 0.5,
    risk: float = 0.05,
    doubts: tuple[str, ...] = (),
) -> RiskAssessment:
    """Reads the classifier at every rate, and at the recipe's own if it has one.

    Args:
        features: At any rate: what follows the rate is moved along.
        learning_rate: The recipe's peak rate; None asks only for the safe rate.
        threshold: Probability at which the verdict becomes `RISK`.
        risk: Upper bound on the probability at the safe rate.
        doubts: Reasons from the evidence to answer "cannot tell", for example a degenerate
            spectrum when nothing better was measured.
    """
    asked = [] if learning_rate is None else [learning_rate]
    predictions = classifier.predict_at(features, np.log10([*_RATES, *asked]) - features["rate"])
    curve = [
        CurvePoint(learning_rate=rate, probability=p.probability, low=p.low, high=p.high)
        for rate, p in zip(_RATES, predictions, strict=False)  # the asked one comes after
    ]
    safe = [point.learning_rate for point in curve if point.high <= risk]
    edge = _crossing(curve, 0.5)
    outside = classifier.outside(features)
    reasons = list(doubts)
    distance = classifier.distance(features)
    if distance > 3:
        worst = max(outside, key=outside.get)
        reasons.append(
            f"{_MEANINGS[worst]} lies {outside[worst]:.1f} ranges outside the labelled runs"
        )
    failed = diverged = None
    verdict, contributions, counterfactual = Verdict.INDETERMINATE, [], None
    if learning_rate is not None:
        here = features.at(learning_rate)
        failed = predictions[-1]
        diverged = classifier.predict(here, "diverged")
        contributions = _contributions(classifier, here)
        if not reasons:
            verdict = Verdict.RISK if failed.probability >= threshold else Verdict.OK
        counterfactual = _counterfactual(curve, learning_rate, failed.probability, threshold)
    elif not reasons:
        verdict = Verdict.OK
    return RiskAssessment(
        verdict=verdict,
        reasons=reasons,
        evidence=str(features.tier),
        horizon_steps=HORIZON_STEPS,
        **_probabilities(failed, diverged),
        safe_learning_rate=max(safe, default=None),
        likely_edge=edge,
        risk=risk,
        threshold=threshold,
        curve=curve,
        contributions=contributions,
        outside=outside,
        counterfactual=counterfactual,
        classifier_data=classifier.card.get("data"),
    )


def certain_failure(
    cause: str,
    tier: Tier,
    *,
    learning_rate: float | None,
    threshold: float = 0.5,
    risk: float = 0.05,
) -> RiskAssessment:
    """The answer where no classifier is needed: values are not finite before the first step.

    Args:
        cause: What is not finite, a clause.
    """
    sure = Prediction(probability=1.0, low=1.0, high=1.0)
    here = None if learning_rate is None else sure
    return RiskAssessment(
        verdict=Verdict.RISK,
        reasons=[],
        evidence=str(tier),
        horizon_steps=HORIZON_STEPS,
        **_probabilities(here, here),
        safe_learning_rate=None,
        likely_edge=None,
        risk=risk,
        threshold=threshold,
        curve=[
            CurvePoint(learning_rate=rate, probability=1.0, low=1.0, high=1.0) for rate in _RATES
        ],
        contributions=[],
        outside={},
        counterfactual=f"Before the first step {cause}: no learning rate trains this model.",
        classifier_data=None,
    )


def _probabilities(
    failed: Prediction | None, diverged: Prediction | None
) -> dict[str, float | None]:
    """The fields of an assessment that need a learning rate; all None without one."""
    return {
        "probability_failed": failed and failed.probability,
        "probability_failed_low": failed and failed.low,
        "probability_failed_high": failed and failed.high,
        "probability_diverged": diverged and diverged.probability,
    }


def _crossing(curve: list[CurvePoint], level: float) -> float | None:
    """Where the probability passes a level, interpolated in the logarithm of the rate."""
    for left, right in pairwise(curve):
        if left.probability < level <= right.probability:
            share = (level - left.probability) / (right.probability - left.probability)
            low, high = math.log10(left.learning_rate), math.log10(right.learning_rate)
            return float(f"{10 ** (low + share * (high - low)):.3g}")
    return None


def _contributions(classifier: DivergenceClassifier, features: FeatureVector) -> list[Contribution]:
    """Shares of the log-odds; all that follows the rate is one reason: the rate is too high."""
    shares = classifier.contributions(features)
    following = [f.name for f in FEATURES if f.follows_rate and f.name in shares]
    rate = sum(shares.pop(name) for name in following)
    parts = [
        Contribution(
            feature="learning_rate",
            log_odds=rate,
            meaning="the learning rate against what this model reacts to",
        )
    ]
    parts += [
        Contribution(feature=name, log_odds=share, meaning=_MEANINGS[name])
        for name, share in shares.items()
    ]
    return sorted(parts, key=lambda part: (-abs(part.log_odds), part.feature))


def _counterfactual(
    curve: list[CurvePoint], rate: float, probability: float, threshold: float
) -> str | None:
    if probability < threshold:
        return None
    below = [p.learning_rate for p in curve if p.probability < threshold and p.learning_rate < rate]
    if not below:
        return "No learning rate alone brings the risk under the threshold."
    best = max(below)
    lower = rate / best
    return (
        f"A learning rate of {best:.2g} ({lower:.1f} times lower) would bring it under "
        f"{threshold:.0%}."
    )
