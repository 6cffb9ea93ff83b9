"""A logistic model that is a sum of step functions, one a feature: small, exact, readable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rksp.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFunction:
    """Contribution of one feature to the log-odds.

    Attributes:
        edges: Ascending thresholds, `[steps - 1]`; a value on an edge belongs to the step below.
        values: Log-odds of each step, `[steps]`.
        missing: Log-odds when the feature was not measured.
    """

    edges: np.ndarray
    values: np.ndarray
    missing: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Log-odds of each value of `x`, `[rows]` float64; NaN means not measured."""
        steps = np.searchsorted(self.edges, np.where(np.isnan(x), 0.0, x), side="left")
        return np.where(np.isnan(x), self.missing, self.values[steps])


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveModel:
    """Log-odds = intercept + Σ_j f_j(x_j): evaluated with numpy, stored as JSON.

    Attributes:
        names: Features in order; a model knows the columns it was fitted on by name.
        functions: One a feature.
        intercept: Log-odds of a run whose every contribution is zero. The functions are centered
            on the training rows, so this is the log-odds of the average row.
    """

    names: tuple[str, ...]
    functions: tuple[StepFunction, ...]
    intercept: float

    def contributions(self, x: np.ndarray) -> np.ndarray:
        """Each feature's share of the log-odds, `[rows, features]`; they sum to it exactly."""
        columns = zip(self.functions, x.T, strict=True)
        return np.stack([function(column) for function, column in columns], axis=1)

    def log_odds(self, x: np.ndarray) -> np.ndarray:
        """Log-odds before calibration, `[rows]`, of features `[rows, features]`."""
        return self.intercept + self.contributions(x).sum(axis=1)

    def to_dict(self) -> dict[str, object]:
        """A JSON-ready form that loses nothing."""
        return {
            "intercept": self.intercept,
            "features": {
                name: {
                    "edges": function.edges.tolist(),
                    "values": function.values.tolist(),
                    "missing": function.missing,
                }
                for name, function in zip(self.names, self.functions, strict=True)
            },
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, object]) -> AdditiveModel:
        """Rebuilds a model.

        Raises:
            ArtifactError: A number is not finite, an edge is out of order or a step is missing.
        """
        functions = []
        for name, parts in stored["features"].items():
            edges, values = np.array(parts["edges"], float), np.array(parts["values"], float)
            whole = np.concatenate([edges, values, [float(parts["missing"])]])
            if not np.isfinite(whole).all() or len(values) != len(edges) + 1:
                raise ArtifactError(f"The classifier's feature {name!r} is damaged.")
            if (np.diff(edges) <= 0).any():
                raise ArtifactError(f"The classifier's feature {name!r} has unordered edges.")
            functions.append(
                StepFunction(edges=edges, values=values, missing=float(parts["missing"]))
            )
        return cls(
            names=tuple(stored["features"]),
            functions=tuple(functions),
            intercept=float(stored["intercept"]),
        )


def fit_additive(
    x: np.ndarray,
    y: np.ndarray,
    *,
    names: Sequence[str],
    increasing: Sequence[bool],
    weights: np.ndarray | None = None,
    rounds: int = 120,
    learning_rate: float = 0.12,
) -> AdditiveModel:
    """Boosts trees that each look at one feature, and folds them into step functions.

    Scikit-learn's `HistGradientBoostingClassifier` without interactions; a feature marked in
    `increasing` can only raise the log-odds as it grows.

    Args:
        x: `[rows, features]` float64, NaN where not measured.
        y: `[rows]` of 0 and 1.
        weights: `[rows]`, for example one over the size of a row's ladder.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # only fitting needs it

    # scikit-learn cannot bin a column without a single value; a constant one is never split.
    x = np.where(np.isnan(x).all(axis=0), 0.0, x)
    booster = HistGradientBoostingClassifier(
        max_iter=rounds,
        learning_rate=learning_rate,
        max_leaf_nodes=4,
        min_samples_leaf=30,
        l2_regularization=10.0,
        max_bins=64,
        monotonic_cst=[int(flag) for flag in increasing],
        interaction_cst="no_interactions",
        early_stopping=False,
        random_state=0,
    ).fit(x, y, sample_weight=weights)
    trees = [tree for group in booster._predictors for tree in group]
    functions, intercept = [], float(booster._baseline_prediction.item())
    for column in range(x.shape[1]):
        function = _fold([t.nodes for t in trees if _feature(t.nodes) == column])
        mean = float(np.average(function(x[:, column]), weights=weights))
        intercept += mean
        functions.append(
            StepFunction(
                edges=function.edges,
                values=_round(function.values - mean),
                missing=float(_round(function.missing - mean)),
            )
        )
    intercept += sum(t.nodes[0]["value"] for t in trees if t.nodes[0]["is_leaf"])
    return AdditiveModel(
        names=tuple(names), functions=tuple(functions), intercept=float(_round(intercept))
    )


def _feature(nodes: np.ndarray) -> int | None:
    return None if nodes[0]["is_leaf"] else int(nodes[0]["feature_idx"])


def _fold(trees: list[np.ndarray]) -> StepFunction:
    """Adds up single-feature trees into one step function."""
    splits = {float(n["num_threshold"]) for nodes in trees for n in nodes if not n["is_leaf"]}
    edges = np.array(sorted(splits & {s for s in splits if np.isfinite(s)}))
    inside = np.concatenate([edges, [np.inf]])  # the upper end belongs to its step
    values = np.zeros(len(inside))
    missing = 0.0
    for nodes in trees:
        values += [_descend(nodes, value) for value in inside]
        missing += _descend(nodes, np.nan)
    return StepFunction(edges=edges, values=values, missing=missing)


def _descend(nodes: np.ndarray, value: float) -> float:
    node = nodes[0]
    while not node["is_leaf"]:
        if np.isnan(value):
            left = bool(node["missing_go_to_left"])
        else:
            left = value <= node["num_threshold"]
        node = nodes[node["left" if left else "right"]]
    return float(node["value"])


def _round(values: np.ndarray | float) -> np.ndarray:
    """Ten decimals of log-odds: short to store, and far below any effect on a probability."""
    return np.round(values, 10)
