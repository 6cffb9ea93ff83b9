"""Norms and eigenvalues of operators against a plain SVD and float64 LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from rksp.spectra import operators
from rksp.spectra.operators import EigenSystem, eigen_system, operator_norm

SIZE = operators._MIXED + 40


def _noise(size: int = SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, size)) / np.sqrt(size)


@pytest.mark.parametrize("distance", [0.1, 1e-2, 1e-4, 1e-6, 1e-10])
@pytest.mark.parametrize("is_identity", [True, False])
def test_the_norm_of_an_operator_that_is_nearly_orthogonal(distance: float, is_identity: bool):
    size = 150
    near = np.eye(size) if is_identity else np.linalg.qr(_noise(size, 1))[0]
    operator = near + distance * _noise(size)
    assert operator_norm(operator) == pytest.approx(np.linalg.norm(operator, 2), rel=1e-6)


def _missed(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest distance of matched eigenvalues."""
    apart = np.abs(one[:, None] - other)
    return float(apart[linear_sum_assignment(apart)].max())


OPERATORS = {
    "a disc": 0.8 * np.eye(SIZE) + 0.6 * _noise(),
    "near the identity": np.eye(SIZE) + 1e-3 * _noise(),
    "symmetric": _noise() + _noise().T,
    "a rotation": np.linalg.qr(_noise())[0],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_vectors_in_float32_leave_eigenvalues_of_float64(name: str, monkeypatch):
    operator = OPERATORS[name]
    mixed = eigen_system(operator)
    assert isinstance(operators._mixed(operator), EigenSystem)
    monkeypatch.setattr(operators, "_MIXED", SIZE + 1)
    double = eigen_system(operator)
    assert not np.array_equal(mixed.eigenvalues, double.eigenvalues)
    assert _missed(mixed.eigenvalues, double.eigenvalues) < 1e-7
    assert mixed.condition == pytest.approx(double.condition, rel=5e-3)
    sums = np.diag(np.arange(1.0, SIZE + 1)), np.ones(SIZE)
    ratios = [np.sort(system.left_ratio(*sums)) for system in (mixed, double)]
    np.testing.assert_allclose(*ratios, rtol=5e-3)


@pytest.mark.parametrize("strength", [0.05, 1.0])
def test_an_operator_with_dependent_vectors_is_left_to_float64(strength: float):
    operator = 0.9 * np.eye(SIZE) + np.triu(strength * _noise(), 1)
    assert operators._mixed(operator) is None
    assert _missed(eigen_system(operator).eigenvalues, np.linalg.eigvals(operator)) == 0


def test_two_directions_that_float32_cannot_tell_apart_are_left_to_float64():
    values = np.linspace(-1, 1, SIZE)
    values[1] = values[0] + 1e-7
    turned = np.eye(SIZE) + 0.2 * _noise()
    assert operators._mixed(turned @ np.diag(values) @ np.linalg.inv(turned)) is None
