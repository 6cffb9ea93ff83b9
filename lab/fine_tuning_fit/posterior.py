"""The normal posterior of coefficients that are seen through intervals (Laplace)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fit.censored import log_interval

_STEPS = 60
_SETTLED = 1e-8  # gain of the log posterior at which Newton's method stops


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One interval: the coefficients it adds up, its noise, and how often it was seen."""

    values: Mapping[str, float]
    low: float
    high: float
    noise: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Mean and covariance of the coefficients, in the order of `names`.

    `evidence` is the logarithm of the marginal likelihood (Laplace), with its constant.
    """

    names: Sequence[str]
    mean: np.ndarray
    covariance: np.ndarray
    evidence: float


def posterior(
    seen: Sequence[Seen], means: Mapping[str, float], spreads: Mapping[str, float]
) -> Posterior:
    """Return the normal distribution around the mode; the log posterior is concave.

    Args:
        seen: What is known.
        means: Prior means; 0 where none is given.
        spreads: Prior standard deviations of every coefficient.
    """
    names = sorted(spreads)
    order = {name: number for number, name in enumerate(names)}
    design = np.zeros((len(seen), len(names)))
    for row, one in enumerate(seen):
        for name, value in one.values.items():
            design[row, order[name]] = value
    low, high = np.array([s.low for s in seen]), np.array([s.high for s in seen])
    noise = np.array([s.noise for s in seen])
    count = np.array([float(s.count) for s in seen])
    center = np.array([means.get(name, 0.0) for name in names])
    precision = np.array([spreads[name] for name in names]) ** -2.0

    def height(point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        log_p, slope, log_slope = log_interval(low, high, design @ point, noise)
        bend = count * (log_slope / noise**2 - slope**2)  # second derivative in the location
        away = point - center
        gradient = design.T @ (count * slope) - precision * away
        return float(count @ log_p - 0.5 * (precision * away) @ away), gradient, bend

    point = center.copy()
    value, gradient, bend = height(point)
    for _ in range(_STEPS):
        step = np.linalg.solve(_curvature(design, bend, precision), gradient)
        share = 1.0
        while True:
            after = height(point + share * step)
            if after[0] >= value or share < 1e-6:
                break
            share /= 2
        gained = after[0] - value
        point = point + share * step
        value, gradient, bend = after
        if gained < _SETTLED:
            break
    curvature = _curvature(design, bend, precision)
    evidence = value - 0.5 * np.linalg.slogdet(curvature)[1] + 0.5 * np.log(precision).sum()
    return Posterior(
        names=names,
        mean=point,
        covariance=np.linalg.inv(curvature),
        evidence=float(evidence),
    )


def _curvature(design: np.ndarray, bend: np.ndarray, precision: np.ndarray) -> np.ndarray:
    return (design * -bend[:, None]).T @ design + np.diag(precision)
