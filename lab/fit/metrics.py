"""Bootstrap intervals over configurations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rksp.classifiers.metrics import auroc


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number with its 95 % bootstrap interval over ladders."""

    value: float
    low: float
    high: float


def bootstrap(
    statistic: Callable[[np.ndarray], float], groups: np.ndarray, *, draws: int = 200
) -> tuple[float, float]:
    """Return the 2.5th and 97.5th percentile of a statistic, whole groups drawn with repeats.

    Args:
        statistic: Takes row indices.
        groups: Group of each row, `[rows]`: rows of one ladder are not independent.
        draws: Number of draws.
    """
    rng = np.random.default_rng(0)
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


def difference(y: np.ndarray, ours: np.ndarray, theirs: np.ndarray, ladders: np.ndarray) -> Score:
    """Return the AUROC of ours minus theirs, with its interval over ladders."""
    statistic = lambda rows: auroc(y[rows], ours[rows]) - auroc(y[rows], theirs[rows])
    low, high = bootstrap(statistic, ladders)
    return Score(value=statistic(np.arange(len(y))), low=low, high=high)
