"""From features to an answer: how likely, why, and which learning rate is safe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from rksp.classifiers.classifier import DivergenceClassifier, Prediction
from rksp.features import FEATURES, FeatureVector, Tier

HORIZON_STEPS = 200  # the longest runs of the collection
# Rates looked at; a twentieth of a decade is 12 %.
_RATES = tuple(float(f"{10**decade:.4g}") for decade in np.arange(-7.0, 1.0001, 0.05))
_MEANINGS = {feature.name: feature.meaning for feature in FEATURES}


class Verdict(StrEnum):
    """What to do with the answer."""

    OK = "ok"
    RISK = "risk"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """P(failed) at one learning rate, with its interval."""

    learning_rate: float
    probability: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One feature's share of the log-odds: positive raises the risk above the average run's."""

    feature: str
    log_odds: float
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskAssessment:
    """The answer for one model and recipe.

    Attributes:
        verdict: `RISK` if the point estimate is at or above `threshold`.
        reasons: Why the verdict is indeterminate; empty otherwise.
        failed: P(failed) at the recipe's rate: a lower rate would train better, or nothing does.
        diverged: P(diverged) at the recipe's rate: non-finite, or the published thresholds.
        safe_learning_rate: Largest rate whose upper bound stays under `risk`; None if no rate's
            does.
        likely_edge: Rate at which P(failed) crosses one half, the best guess of the edge; None if
            it does not cross within the rates looked at.
        curve: P(failed) against the rate.
        contributions: What moves this run's log-odds from the average, largest first.
        outside: Features beyond the fitted range, in widths of it.
        counterfactual: A sentence: the rate that would bring the probability under the threshold,
            or why none does.
        tier: Evidence behind the answer.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    failed: Prediction | None
    diverged: Prediction | None
    safe_learning_rate: float | None
    likely_edge: float | None
    curve: tuple[CurvePoint, ...]
    contributions: tuple[Contribution, ...]
    outside: dict[str, float]
    counterfactual: str | None
    tier: Tier
    threshold: float
    risk: float


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
    verdict, contributions, counterfactual = Verdict.INDETERMINATE, (), None
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
        reasons=tuple(reasons),
        failed=failed,
        diverged=diverged,
        safe_learning_rate=max(safe, default=None),
        likely_edge=edge,
        curve=tuple(curve),
        contributions=contributions,
        outside=outside,
        counterfactual=counterfactual,
        tier=features.tier,
        threshold=threshold,
        risk=risk,
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
    return RiskAssessment(
        verdict=Verdict.RISK,
        reasons=(),
        failed=None if learning_rate is None else sure,
        diverged=None if learning_rate is None else sure,
        safe_learning_rate=None,
        likely_edge=None,
        curve=tuple(
            CurvePoint(learning_rate=rate, probability=1.0, low=1.0, high=1.0) for rate in _RATES
        ),
        contributions=(),
        outside={},
        counterfactual=f"Before the first step {cause}: no learning rate trains this model.",
        tier=tier,
        threshold=threshold,
        risk=risk,
    )


def _crossing(curve: list[CurvePoint], level: float) -> float | None:
    """Where the probability passes a level, interpolated in the logarithm of the rate."""
    for left, right in pairwise(curve):
        if left.probability < level <= right.probability:
            share = (level - left.probability) / (right.probability - left.probability)
            low, high = math.log10(left.learning_rate), math.log10(right.learning_rate)
            return float(f"{10 ** (low + share * (high - low)):.3g}")
    return None


def _contributions(
    classifier: DivergenceClassifier, features: FeatureVector
) -> tuple[Contribution, ...]:
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
    return tuple(sorted(parts, key=lambda part: (-abs(part.log_odds), part.feature)))


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
