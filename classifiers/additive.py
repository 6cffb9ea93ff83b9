"""A logistic model that is a sum of one curve a feature: small, exact, readable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rksp.errors import ArtifactError

RATE = "rate"  # the feature that the log-odds rise linearly with
KNOTS = 4  # of each curve; with five or more, 300 ladders are fitted no better
STRENGTH = 0.3  # inverse L2 penalty: between 0.1 and 1 the held-out AUROC moves by 0.002
_RATE_SCALE = 3.0  # the rate is stretched by this for the fit, so that the penalty hardly sees it
_DECIMALS = 7  # of log-odds: far below any effect on a probability, far above the solver's error


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Contribution of one feature to the log-odds: linear between knots, constant beyond them.

    Attributes:
        knots: Ascending, `[knots]`.
        values: Log-odds at each knot, `[knots]`.
        missing: Log-odds when the feature was not measured: those of its median.
    """

    knots: np.ndarray
    values: np.ndarray
    missing: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Log-odds of each value of `x`, `[rows]` float64; NaN means not measured."""
        found = np.interp(np.where(np.isnan(x), 0.0, x), self.knots, self.values)
        return np.where(np.isnan(x), self.missing, found)


# Of a feature that no training row had.
_NOTHING = Curve(knots=np.array([0.0, 1.0]), values=np.zeros(2), missing=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveModel:
    """Log-odds = intercept + slope · (rate − mean rate) + Σ_j f_j(x_j), stored as JSON.

    Where a feature moves with the learning rate, f_j sees it at rate 1: so the rate enters once,
    with a positive slope, and −Σ f_j / slope is where the log-odds put the edge, in decades.

    Attributes:
        names: Features in order, `RATE` among them; a model knows its columns by name.
        follows: Which of them are a sum of the rate and something else, the rate included.
        curves: One a feature; the rate's is None.
        slope: Log-odds a decade of the rate, positive.
        mean_rate: Of the training rows.
        intercept: Log-odds of a run whose every contribution is zero. The curves are centered on
            the training rows, so this is the log-odds of the average row.
    """

    names: tuple[str, ...]
    follows: tuple[bool, ...]
    curves: tuple[Curve | None, ...]
    slope: float
    mean_rate: float
    intercept: float

    def contributions(self, x: np.ndarray) -> np.ndarray:
        """Each feature's share of the log-odds, `[rows, features]`; they sum to it exactly."""
        rate = x[:, self.names.index(RATE)]
        shares = np.empty(x.shape)
        for j, (curve, follows) in enumerate(zip(self.curves, self.follows, strict=True)):
            if curve is None:
                shares[:, j] = self.slope * (rate - self.mean_rate)
            else:
                shares[:, j] = curve(x[:, j] - rate if follows else x[:, j])
        return shares

    def log_odds(self, x: np.ndarray) -> np.ndarray:
        """Log-odds before calibration, `[rows]`, of features `[rows, features]`."""
        return self.intercept + self.contributions(x).sum(axis=1)

    def to_dict(self) -> dict[str, object]:
        """A JSON-ready form that loses nothing."""
        return {
            "intercept": self.intercept,
            "slope": self.slope,
            "mean_rate": self.mean_rate,
            "features": {
                name: {
                    "follows": follows,
                    "knots": curve.knots.tolist(),
                    "values": curve.values.tolist(),
                    "missing": curve.missing,
                }
                for name, follows, curve in zip(self.names, self.follows, self.curves, strict=True)
                if curve is not None
            },
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> AdditiveModel:
        """Rebuilds a model.

        Raises:
            ArtifactError: A number is not finite, a knot is out of order, a value is missing, or
                the risk would fall with the rate.
        """
        curves = {name: _curve(name, parts) for name, parts in stored["features"].items()}
        numbers = [float(stored[key]) for key in ("slope", "mean_rate", "intercept")]
        if not np.isfinite(numbers).all() or numbers[0] <= 0:
            raise ArtifactError("The classifier's slope, rate or intercept is damaged.")
        slope, mean_rate, intercept = numbers
        return cls(
            names=(RATE, *curves),
            follows=(True, *(bool(stored["features"][name]["follows"]) for name in curves)),
            curves=(None, *curves.values()),
            slope=slope,
            mean_rate=mean_rate,
            intercept=intercept,
        )


def _curve(name: str, parts: Mapping[str, object]) -> Curve:
    knots, values = np.array(parts["knots"], float), np.array(parts["values"], float)
    missing = float(parts["missing"])
    if not np.isfinite([*knots, *values, missing]).all() or len(values) != len(knots):
        raise ArtifactError(f"The classifier's feature {name!r} is damaged.")
    if len(knots) < 2 or (np.diff(knots) <= 0).any():
        raise ArtifactError(f"The classifier's feature {name!r} has unordered knots.")
    return Curve(knots=knots, values=values, missing=missing)


def fit_additive(
    x: np.ndarray,
    y: np.ndarray,
    *,
    names: Sequence[str],
    follows: Sequence[bool],
    weights: np.ndarray | None = None,
) -> AdditiveModel:
    """Logistic regression, penalized, on the rate and on a hat function per feature and knot.

    A generalized additive model (Hastie and Tibshirani, 1986) by scikit-learn. Knots lie evenly
    between the 1st and 99th percentile; what was not measured counts as the median.

    Args:
        x: `[rows, features]` float64, NaN where not measured; one feature is called `RATE`.
        y: `[rows]` of 0 and 1.
        follows: Which features move with the rate, `RATE` among them.
        weights: `[rows]`, for example one over the size of a row's ladder.

    Raises:
        ArtifactError: The data say that a higher rate lowers the risk.
    """
    from sklearn.linear_model import LogisticRegression  # only fitting needs it

    weights = np.ones(len(y)) if weights is None else weights * len(y) / weights.sum()
    rate = x[:, list(names).index(RATE)]
    mean_rate = float(np.average(rate, weights=weights))
    unit = x - np.where(follows, 1.0, 0.0) * rate[:, None]
    columns = [j for j, name in enumerate(names) if name != RATE and np.isfinite(unit[:, j]).any()]
    medians = {j: float(np.nanmedian(unit[:, j])) for j in columns}
    filled = {j: np.nan_to_num(unit[:, j], nan=medians[j]) for j in columns}
    knots = {j: _knots(unit[:, j]) for j in columns}
    design = [(rate - mean_rate)[:, None] * _RATE_SCALE]
    design += [_hats(filled[j], knots[j]) for j in columns]
    fit = LogisticRegression(C=STRENGTH, solver="newton-cholesky", tol=1e-10, max_iter=200)
    fit.fit(np.concatenate(design, axis=1), y, sample_weight=weights)
    slope = float(fit.coef_[0, 0]) * _RATE_SCALE
    if slope <= 0:
        raise ArtifactError(
            "In these runs a higher learning rate fails less often; a classifier of divergence "
            "cannot be fitted to them."
        )
    intercept = float(fit.intercept_[0])
    curves: list[Curve | None] = [None if name == RATE else _NOTHING for name in names]
    for j, heights in zip(columns, fit.coef_[0, 1:].reshape(-1, KNOTS), strict=True):
        raw = Curve(knots=knots[j], values=heights, missing=0.0)
        mean = float(np.average(raw(filled[j]), weights=weights))
        intercept += mean
        at_median = float(raw(np.array([medians[j]]))[0])
        curves[j] = Curve(
            knots=knots[j], values=_round(heights - mean), missing=float(_round(at_median - mean))
        )
    return AdditiveModel(
        names=tuple(names),
        follows=tuple(map(bool, follows)),
        curves=tuple(curves),
        slope=float(_round(slope)),
        mean_rate=float(_round(mean_rate)),
        intercept=float(_round(intercept)),
    )


def _knots(values: np.ndarray) -> np.ndarray:
    low, high = np.nanpercentile(values, [1, 99])
    if high <= low:  # a flag that is seldom set
        low, high = np.nanmin(values), np.nanmax(values)
    return _round(np.linspace(low, high if high > low else low + 1.0, KNOTS))


def _hats(values: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Hat functions of the knots at each value, `[rows, knots]`; rows sum to one."""
    return np.stack([np.interp(values, knots, row) for row in np.eye(len(knots))], axis=1)


def _round(values: np.ndarray | float) -> np.ndarray:
    return np.round(values, _DECIMALS)
