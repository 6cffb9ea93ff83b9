"""The challengers: what else was fitted on the same features, to see what simplicity costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from rksp.classifiers.fit import Fit, fit_raw, labels
from rksp.classifiers.table import Table
from rksp.features import FEATURES, Tier, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SklearnModel:
    """A scikit-learn classifier seen as log-odds."""

    model: Pipeline | HistGradientBoostingClassifier

    def log_odds(self, x: np.ndarray) -> np.ndarray:
        return self.model.decision_function(x)


def fit_logistic(table: Table, question: str, tier: Tier) -> SklearnModel:
    """Logistic regression on standardized features, the median and a flag where one is missing."""
    model = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
        StandardScaler(),
        LogisticRegression(C=0.3, max_iter=2000),
    )
    model.fit(
        table.x[:, columns(tier)],
        labels(table, question),
        logisticregression__sample_weight=table.weights,
    )
    return SklearnModel(model=model)


def fit_boosted(table: Table, question: str, tier: Tier) -> SklearnModel:
    """Gradient-boosted trees with interactions, monotone in whatever follows the rate."""
    chosen = columns(tier)
    x = table.x[:, chosen]
    model = HistGradientBoostingClassifier(
        max_iter=150,
        learning_rate=0.06,
        max_leaf_nodes=12,
        min_samples_leaf=30,
        l2_regularization=10.0,
        max_features=0.5,
        monotonic_cst=[int(FEATURES[i].follows_rate) for i in chosen],
        early_stopping=False,
        random_state=0,
    )
    # A column without a single value cannot be binned.
    empty = np.isnan(x).all(axis=0)
    model.fit(np.where(empty, 0.0, x), labels(table, question), sample_weight=table.weights)
    return SklearnModel(model=model)


CHALLENGERS: dict[str, Fit] = {
    "additive curves (shipped)": fit_raw,
    "logistic": fit_logistic,
    "boosted trees": fit_boosted,
}
