"""The Kreiss constant against closed forms, brute force and its own bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.oracles import brute_force_kreiss, jordan, noisy_pair, real_blocks, rotation

from rksp.spectra.dmd import fit
from rksp.spectra.operators import kreiss_constant


def _random(n: int, seed: int) -> np.ndarray:
    return np.eye(n) + 0.3 * np.random.default_rng(seed).standard_normal((n, n))


def _scaled(operator: np.ndarray) -> np.ndarray:
    return operator / (1.01 * max(1.0, np.abs(np.linalg.eigvals(operator)).max()))


def test_a_normal_operator_does_not_grow() -> None:
    turn = rotation(7, 1)
    normal = turn @ real_blocks([complex(0.6, 0.7), 0.99, -0.5, complex(-0.1, 0.3), 0.0]) @ turn.T
    assert kreiss_constant(normal) == pytest.approx(1.0, abs=1e-3)
    assert kreiss_constant(3.0 * np.eye(4)) == pytest.approx(1.0, abs=1e-3)  # scaled first
    assert kreiss_constant(np.zeros((3, 3))) == pytest.approx(1.0)
    assert kreiss_constant(jordan(0.9, 4)) > 10


def test_a_nilpotent_block_has_its_closed_form() -> None:
    # ||(zI - cN)^-1||_2 for a 2 x 2 nilpotent block, maximized over |z| by brute force in one line
    c, scale = 6.0, 1.01
    radii = 1 + np.geomspace(1e-3, 1e2, 20_000)
    a, b = 1 / radii, (c / scale) / radii**2
    norms = np.sqrt(a**2 + b**2 / 2 + b * np.sqrt(a**2 + b**2 / 4))
    found = kreiss_constant(c * np.diag([1.0], 1))
    assert found == pytest.approx(((radii - 1) * norms).max(), rel=1e-3)


@pytest.mark.parametrize("operator", [_random(20, 2), jordan(0.9, 5)], ids=["random", "jordan"])
def test_agrees_with_brute_force(operator: np.ndarray) -> None:
    expected = brute_force_kreiss(_scaled(operator))
    assert 0.99 * expected < kreiss_constant(operator) < 1.05 * expected


def test_bounds_the_growth_of_powers() -> None:
    operator = _random(24, 3)
    found, scaled = kreiss_constant(operator), _scaled(operator)
    powers = [np.eye(24)]
    for _ in range(200):
        powers.append(powers[-1] @ scaled)
    growth = max(np.linalg.norm(p, 2) for p in powers)
    assert growth / (math.e * 24) <= found <= growth * (1 + 1e-9)


def test_fit_measures_it_only_when_asked() -> None:
    x, y = noisy_pair(100, 12, seed=5)
    assert fit(x, y, kreiss=True).kreiss >= 1.0
    assert fit(x, y).kreiss is None
