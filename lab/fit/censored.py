"""Linear regression on values of which only an interval is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

_NARROWEST, _WIDEST = 0.05, 2.0  # standard deviations searched
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_MOVE = 1e-5  # of a parameter, between the slopes that tell the curvature
_NEWTON_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CensoredFit:
    """Coefficients in the units of the columns.

    Attributes:
        intercept: At the centers of the columns.
        coefficients, centers: One a column.
        spreads: Standard deviation of the noise of every kind of row.
        groups: The offset of every group, which a prediction for a new group leaves out.
    """

    intercept: float
    coefficients: np.ndarray
    centers: np.ndarray
    spreads: np.ndarray
    groups: dict[str, float]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the location of a new group, `[rows]`, for columns `[rows, columns]`."""
        return self.intercept + (x - self.centers) @ self.coefficients


def fit_censored(
    x: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    weights: np.ndarray,
    kinds: np.ndarray,
    groups: Sequence[str],
    signs: Sequence[int],
    group_spread: float,
    priors: Sequence[float | None] = (),
    means: Sequence[float] = (),
) -> CensoredFit:
    """Maximize the penalized likelihood of normal values seen as intervals.

    Interval-censored regression (Tobin, 1958; Gentleman and Geyer, 1994) with one spread for each
    kind of row, a normal offset for each named group, and a ridge on standardized coefficients.

    Args:
        x: `[rows, columns]`, finite.
        low: `[rows]`; -inf where that side is open.
        high: `[rows]`; inf where that side is open.
        weights: `[rows]`, of the log-likelihood.
        kinds: `[rows]` int, from 0.
        groups: `[rows]`; "" has no offset.
        signs: `[columns]`: 1 and -1 keep a coefficient from changing sign.
        group_spread: Standard deviation of the offsets.
        priors: `[columns]`: standard deviation of a coefficient, which replaces the ridge of 1;
            None keeps it. Empty keeps all.
        means: `[columns]`: of the coefficients before the data; empty for 0.
    """
    from scipy.optimize import minimize  # only fitting needs it

    centers = np.average(x, axis=0, weights=weights)
    scales = np.sqrt(np.average((x - centers) ** 2, axis=0, weights=weights)) + 1e-9
    expected = np.array(means) if len(means) else np.zeros(x.shape[1])
    known = (x - centers) @ expected  # what is left is around 0
    low, high = low - known, high - known
    z = (x - centers) / scales
    stiff = np.array(
        [
            1.0 if prior is None else 1 / (prior * scale) ** 2
            for prior, scale in zip(priors or [None] * len(scales), scales, strict=True)
        ]
    )
    names = sorted(set(groups) - {""})
    index = np.array([names.index(g) if g else len(names) for g in groups])
    columns, kind_count = x.shape[1], int(kinds.max()) + 1
    middle = slice(1, 1 + columns)
    offsets = slice(1 + columns, 1 + columns + len(names))

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        offset = np.append(theta[offsets], 0.0)
        location = theta[0] + z @ theta[middle] + offset[index]
        spread = np.exp(theta[-kind_count:])[kinds]
        log_p, slope, log_slope = log_interval(low, high, location, spread)
        pull = weights * slope
        gradient = np.empty_like(theta)
        gradient[0] = -pull.sum()
        gradient[middle] = stiff * theta[middle] - z.T @ pull
        summed = np.bincount(index, pull, len(names) + 1)[: len(names)]
        gradient[offsets] = theta[offsets] / group_spread**2 - summed
        gradient[-kind_count:] = -np.bincount(kinds, weights * log_slope, kind_count)
        penalty = theta[middle] @ (stiff * theta[middle])
        penalty += (theta[offsets] @ theta[offsets]) / group_spread**2
        return 0.5 * penalty - float(weights @ log_p), gradient

    start = np.zeros(1 + columns + len(names) + kind_count)
    closed = np.isfinite(low) & np.isfinite(high)
    start[0] = np.average((low[closed] + high[closed]) / 2, weights=weights[closed])
    start[-kind_count:] = math.log(0.4)
    limits = {1: (0.0, None), -1: (None, 0.0), 0: (None, None)}
    bounds = [(None, None), *(limits[s] for s in signs), *[(None, None)] * len(names)]
    bounds += [(math.log(_NARROWEST), math.log(_WIDEST))] * kind_count
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-14, "gtol": 1e-7, "maxcor": 30}
    near = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    theta = _settled(lambda theta: objective(theta)[1], near, bounds)
    return CensoredFit(
        intercept=float(theta[0]),
        coefficients=theta[middle] / scales + expected,
        centers=centers,
        spreads=np.exp(theta[-kind_count:]),
        groups=dict(zip(names, theta[offsets].tolist(), strict=True)),
    )


def _settled(
    slope: Callable[[np.ndarray], np.ndarray],
    near: np.ndarray,
    bounds: Sequence[tuple[float | None, float | None]],
) -> np.ndarray:
    """Return where the slope is zero, from close to it; what lies at a bound stays there.

    A search that compares heights ends some 1e-6 away, where their rounding hides the slope, and on
    another processor elsewhere. Newton's steps, of a curvature from differences, end within 1e-10.
    """
    low = np.array([-math.inf if least is None else least for least, _ in bounds])
    high = np.array([math.inf if most is None else most for _, most in bounds])
    free = np.flatnonzero((near > low) & (near < high))
    moves = _MOVE * np.eye(len(near))[free]
    curvature = np.array([(slope(near + move) - slope(near - move))[free] for move in moves])
    theta = near.copy()
    for _ in range(_NEWTON_STEPS):
        step = np.linalg.lstsq(curvature / (2 * _MOVE), slope(theta)[free], rcond=None)[0]
        theta[free] -= step
    found: np.ndarray = np.clip(theta, low, high)
    return found


def log_chance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return log P(a < value < b) of a standard normal value."""
    from scipy.special import log_ndtr

    # The mirror image keeps the difference of two tails from cancelling.
    mirrored = a > 0
    near, far = np.where(mirrored, -a, b), np.where(mirrored, -b, a)
    log_near, log_far = log_ndtr(near), log_ndtr(far)
    return log_near + np.log1p(-np.exp(np.minimum(log_far - log_near, -1e-12)))


def log_interval(
    low: np.ndarray, high: np.ndarray, location: np.ndarray, spread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log P(low < value < high) and its slopes in the location and the log of the spread."""
    a, b = (low - location) / spread, (high - location) / spread
    log_p = log_chance(a, b)
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    a, b = np.where(finite_a, a, 0.0), np.where(finite_b, b, 0.0)
    at_a = np.where(finite_a, np.exp(-0.5 * a * a - log_p - _HALF_LOG_2PI), 0.0)
    at_b = np.where(finite_b, np.exp(-0.5 * b * b - log_p - _HALF_LOG_2PI), 0.0)
    return log_p, (at_a - at_b) / spread, a * at_a - b * at_b
