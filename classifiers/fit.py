"""Fitting and calibrating the classifier on a table of labelled runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from rksp.classifiers.additive import AdditiveModel, fit_additive
from rksp.classifiers.classifier import DivergenceClassifier, Head
from rksp.classifiers.table import Table
from rksp.features import FEATURE_NAMES, FEATURES, Tier, at_unit_rate, columns

QUESTIONS = ("failed", "diverged")
FOLDS = 8
MAX_SHIFT = 3.0  # decades


class Raw(Protocol):
    """A fitted model before calibration: features `[rows, features]` to log-odds `[rows]`."""

    def log_odds(self, x: np.ndarray) -> np.ndarray: ...


Fit = Callable[[Table, str, Tier], Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Platt's two numbers: calibrated log-odds = slope · raw + offset."""

    slope: float
    offset: float

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        return expit(self.slope * raw + self.offset)


def labels(table: Table, question: str) -> np.ndarray:
    """0 and 1 for one of `QUESTIONS`."""
    return getattr(table, question).astype(int)


def telling(table: Table, question: str) -> np.ndarray:
    """Mask of the rows that say something about a question, `[rows]`.

    A ladder on which no rate learned anything cannot say at which rate learning fails; that a run
    of it diverged counts all the same.
    """
    return table.learned if question == "failed" else np.ones(len(table), dtype=bool)


def fit_raw(table: Table, question: str, tier: Tier) -> AdditiveModel:
    """The uncalibrated additive model of one head."""
    chosen = columns(tier)
    return fit_additive(
        table.x[:, chosen],
        labels(table, question),
        names=[FEATURE_NAMES[i] for i in chosen],
        follows=[FEATURES[i].follows_rate for i in chosen],
        weights=table.weights,
    )


def held_out(
    table: Table,
    question: str,
    tier: Tier,
    groups: np.ndarray,
    *,
    folds: int = FOLDS,
    fit: Fit = fit_raw,
) -> np.ndarray:
    """Raw log-odds of every row from a model that saw no row of its group, `[rows]`."""
    raw = np.full(len(table), np.nan)
    chosen = columns(tier)
    splits = GroupKFold(min(folds, len(np.unique(groups)))).split(table.x, groups=groups)
    for seen, unseen in splits:
        model = fit(table.take(seen), question, tier)
        raw[unseen] = model.log_odds(table.x[unseen][:, chosen])
    return raw


def calibrate(raw: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Calibration:
    """Fits slope and offset by unpenalized logistic regression."""
    if y.min() == y.max():
        return Calibration(slope=1.0, offset=0.0)
    fit = LogisticRegression(C=1e6).fit(raw[:, None], y, sample_weight=weights)
    return Calibration(slope=float(fit.coef_[0, 0]), offset=float(fit.intercept_[0]))


def rate_shift(
    predict: Callable[[np.ndarray], np.ndarray], x: np.ndarray, y: np.ndarray, follows: np.ndarray
) -> float:
    """Decades by which a family's rates would have to move for its mean prediction to be right.

    The observed share is pulled towards one half by one run, so that a family without a failure
    has a finite shift; it stays within `MAX_SHIFT`.

    Args:
        predict: Features `[rows, features]` to probabilities.
        follows: Which features move with the rate, `[features]`.
    """
    share = (y.sum() + 0.5) / (len(y) + 1)
    excess = lambda decades: float(predict(x + decades * follows).mean()) - share
    if excess(-MAX_SHIFT) > 0:
        return -MAX_SHIFT
    if excess(MAX_SHIFT) < 0:
        return MAX_SHIFT
    return float(brentq(excess, -MAX_SHIFT, MAX_SHIFT, xtol=1e-3))


def fit_head(table: Table, question: str, tier: Tier) -> Head:
    """Model, calibration on unseen ladders, and the spread over unseen families."""
    table = table.take(telling(table, question))
    y = labels(table, question)
    by_ladder = held_out(table, question, tier, table.ladder)
    calibration = calibrate(by_ladder, y, table.weights)
    chosen = columns(tier)
    follows = np.array([FEATURES[i].follows_rate for i in chosen], dtype=float)
    shifts = []
    for name in np.unique(table.family):
        own = table.family == name
        rest = fit_raw(table.take(~own), question, tier)
        predict = lambda x, model=rest: calibration(model.log_odds(x))
        shifts.append(abs(rate_shift(predict, table.x[own][:, chosen], y[own], follows)))
    # Split conformal over families: the next one exceeds this with probability at most 0.2.
    rank = min(1.0, np.ceil(0.8 * (len(shifts) + 1)) / len(shifts))
    return Head(
        model=fit_raw(table, question, tier),
        slope=_short(calibration.slope),
        offset=_short(calibration.offset),
        spread=_short(float(np.quantile(shifts, rank, method="higher"))),
    )


def fit_classifier(
    table: Table,
    card: dict[str, object],
    *,
    tiers: tuple[Tier, ...] = tuple(Tier),
    questions: tuple[str, ...] = QUESTIONS,
) -> DivergenceClassifier:
    """Fits every head whose tier was measured; the same table gives the same bytes."""
    measured = np.isfinite(table.x).any(axis=0)
    heads = {
        (question, tier): fit_head(table, question, tier)
        for tier in tiers
        if measured[_own(tier)].any()
        for question in questions
    }
    ranges = {}
    for i, name in enumerate(FEATURE_NAMES):
        values = at_unit_rate(table.x)[:, i]
        found = values[np.isfinite(values)]
        if name != "rate" and len(found):
            low, high = np.percentile(found, [1, 99])
            ranges[name] = (_short(low), _short(high))
    return DivergenceClassifier(heads=heads, ranges=ranges, card=card | {"data": table.digest})


def _own(tier: Tier) -> list[int]:
    return [i for i, feature in enumerate(FEATURES) if feature.tier == tier]


def _short(value: float) -> float:
    return float(f"{float(value):.9g}")
