"""Norms and eigenvector condition of square operators against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from support.oracles import distance

from rksp.spectra.operators import eigen_system, operator_norm


@pytest.mark.parametrize(
    "matrix",
    [
        np.random.default_rng(38).standard_normal((150, 150)),
        np.eye(120),
        np.diag(np.ones(129), 1),
        np.zeros((110, 110)),
        np.diag(np.linspace(1, 2, 140)),
        np.outer(np.ones(130), np.arange(130.0)),
        np.random.default_rng(39).standard_normal((7, 5)),
    ],
    ids=["random", "identity", "shift", "zero", "diagonal", "rank one", "small"],
)
def test_operator_norm_is_the_largest_singular_value(matrix: np.ndarray) -> None:
    expected = np.linalg.svd(matrix, compute_uv=False)[0]
    assert operator_norm(matrix) == pytest.approx(expected, rel=1e-7)


def test_condition_of_the_eigenvectors_is_that_of_the_complex_matrix() -> None:
    operator = np.random.default_rng(40).standard_normal((60, 60))
    values, vectors = np.linalg.eig(operator)
    system = eigen_system(operator)
    assert system.condition == pytest.approx(np.linalg.cond(vectors), rel=1e-5)
    assert distance(system.eigenvalues, values) < 1e-10
