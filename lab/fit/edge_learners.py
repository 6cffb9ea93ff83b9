"""Other learners on the columns of the model of the edge, to compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from lab.fit.edge_fit import ladder_weights
from lab.fit.edge_ladder import EdgeLadder
from rksp.classifiers.edge_inputs import CONFIG_COLUMNS, config_features
from rksp.ground.model import definite

_NAMES = tuple(column.name for column in CONFIG_COLUMNS)
Guess = Callable[[EdgeLadder], tuple[float, float]]


def learner_guesses(rest: Sequence[EdgeLadder]) -> dict[str, Guess]:
    """Gradient boosting and a Gaussian process, fitted on the middles of closed ladders."""
    found: dict[str, Guess] = {}
    for title, make in (("gradient boosting", _boosting), ("Gaussian process", _process)):
        whole = [x for x in rest if x.best is not None]
        edged = [x for x in whole if x.has_edge]
        edge = _fitted(make, edged, [x.edge for x in edged])
        best = _fitted(make, whole, [definite(x.best) for x in whole])
        found[title] = partial(_both, edge, best)
    return found


def _both(
    edge: Callable[[EdgeLadder], float], best: Callable[[EdgeLadder], float], ladder: EdgeLadder
) -> tuple[float, float]:
    return edge(ladder), best(ladder)


def _fitted(
    make: Callable[[], Any], ladders: Sequence[EdgeLadder], values: Sequence[float]
) -> Callable[[EdgeLadder], float]:
    x = np.array([_row(ladder) for ladder in ladders])
    center, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    model, weights = make(), ladder_weights(ladders)
    if hasattr(model, "alpha"):  # a Gaussian process weighs by the noise of a row
        model.set_params(alpha=0.1 / np.maximum(weights, 1e-3))
        model.fit((x - center) / scale, np.array(values))
    else:
        model.fit((x - center) / scale, np.array(values), sample_weight=weights)
    return lambda ladder: float(model.predict(((_row(ladder) - center) / scale)[None, :])[0])


def _row(ladder: EdgeLadder) -> np.ndarray:
    features = config_features(ladder.inputs)
    return np.array([features[name] for name in _NAMES])


def _boosting():
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        max_iter=150, learning_rate=0.05, max_leaf_nodes=8, random_state=0
    )


def _process():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

    kernel = ConstantKernel(0.3) * DotProduct(1.0) + ConstantKernel(0.1) * RBF(5.0)
    return GaussianProcessRegressor(kernel=kernel, optimizer=None, normalize_y=True)
