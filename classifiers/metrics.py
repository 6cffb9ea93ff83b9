"""Ranking and calibration of probabilities."""

from __future__ import annotations

import numpy as np


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
