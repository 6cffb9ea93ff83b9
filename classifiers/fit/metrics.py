"""Ranking and calibration of probabilities, with bootstrap intervals over configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number with its 95 % bootstrap interval over ladders."""

    value: float
    low: float
    high: float


def auroc(y: np.ndarray, p: np.ndarray) -> float:
    """Return the area under the ROC curve; NaN when only one class is present."""
    positives = float(y.sum())
    negatives = len(y) - positives
    if not positives or not negatives:
        return float("nan")
    _, of, counts = np.unique(p, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks = float(middle[of][y > 0].sum())  # Mann and Whitney (1947); ties count half
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)


def ece(y: np.ndarray, p: np.ndarray, *, bins: int = 15) -> float:
    """Return the expected calibration error over bins of equal count (Nixon et al., 2019).

    Naeini et al. (2015) use bins of equal width; equal counts leave no bin to chance.
    """
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return float(sum(len(i) * abs(y[i].mean() - p[i].mean()) for i in parts) / len(y))


def bootstrap(
    statistic: Callable[[np.ndarray], float], groups: np.ndarray, *, draws: int = 200, seed: int = 0
) -> tuple[float, float]:
    """Return the 2.5th and 97.5th percentile of a statistic, whole groups drawn with repeats.

    Args:
        statistic: Takes row indices.
        groups: Group of each row, `[rows]`: rows of one ladder are not independent.
        draws: Number of draws.
        seed: Of the draws.
    """
    rng = np.random.default_rng(seed)
    names, inverse = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(inverse == k) for k in range(len(names))]
    values = []
    for _ in range(draws):
        drawn = rng.integers(0, len(members), len(members))
        value = statistic(np.concatenate([members[k] for k in drawn]))
        if np.isfinite(value):
            values.append(value)
    if not values:
        return float("nan"), float("nan")
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def difference(
    y: np.ndarray, ours: np.ndarray, theirs: np.ndarray, ladders: np.ndarray, *, draws: int = 200
) -> Score:
    """Return the AUROC of ours minus theirs, with its interval over ladders."""
    statistic = lambda rows: auroc(y[rows], ours[rows]) - auroc(y[rows], theirs[rows])
    low, high = bootstrap(statistic, ladders, draws=draws)
    return Score(value=statistic(np.arange(len(y))), low=low, high=high)
