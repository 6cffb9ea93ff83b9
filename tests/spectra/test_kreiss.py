"""The Kreiss constant against closed forms, brute force and its own bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.oracles import brute_force_kreiss, jordan, noisy_pair, real_blocks, rotation

from rksp.spectra.dmd import fit
from rksp.spectra.kreiss import kreiss_constant


def _random(n: int, seed: int) -> np.ndarray:
    return np.eye(n) + 0.3 * np.random.default_rng(seed).standard_normal((n, n))


def test_normal_operator_does_not_grow() -> None:
    turn = rotation(7, 1)
    normal = turn @ real_blocks([complex(0.6, 0.7), 0.99, -0.5, complex(-0.1, 0.3), 0.0]) @ turn.T
    assert kreiss_constant(normal).value == pytest.approx(1.0, abs=1e-3)
    assert kreiss_constant(jordan(0.9, 4)).value > 10


def test_nilpotent_block_has_its_closed_form() -> None:
    # ||(zI - cN)^-1||_2 for a 2 x 2 nilpotent block, maximized over |z| by brute force in one line
    c, scale = 6.0, 1.01
    radii = 1 + np.geomspace(1e-3, 1e2, 20_000)
    a, b = 1 / radii, (c / scale) / radii**2
    norms = np.sqrt(a**2 + b**2 / 2 + b * np.sqrt(a**2 + b**2 / 4))
    found = kreiss_constant(c * np.diag([1.0], 1))
    assert found.value == pytest.approx(((radii - 1) * norms).max(), rel=1e-3)
    assert found.scale == pytest.approx(scale)


@pytest.mark.parametrize("operator", [_random(20, 2), jordan(0.9, 5)], ids=["random", "jordan"])
def test_agrees_with_brute_force(operator: np.ndarray) -> None:
    found = kreiss_constant(operator)
    expected = brute_force_kreiss(operator / found.scale)
    assert found.value > 0.99 * expected
    at = (abs(found.point) - 1) * np.linalg.norm(
        np.linalg.inv(found.point * np.eye(len(operator)) - operator / found.scale), 2
    )
    assert found.value <= at * (1 + 1e-9), "a lower bound by construction"


def test_bounds_the_growth_of_powers() -> None:
    operator = _random(24, 3)
    found = kreiss_constant(operator)
    powers = [np.eye(24)]
    for _ in range(200):
        powers.append(powers[-1] @ operator / found.scale)
    growth = max(np.linalg.norm(p, 2) for p in powers)
    assert growth / (math.e * 24) <= found.value <= growth * (1 + 1e-9)


def test_polishing_never_lowers_the_grid() -> None:
    operator = _random(30, 4)
    grid, polished = kreiss_constant(operator, polish=0), kreiss_constant(operator)
    assert grid.value <= polished.value <= 1.05 * grid.value
    assert grid.resolvents < polished.resolvents


def test_scale_covers_expansive_operators_and_nothing_else() -> None:
    assert kreiss_constant(3.0 * np.eye(4)).scale == pytest.approx(3.03)
    assert kreiss_constant(0.5 * np.eye(4)).scale == pytest.approx(1.01)
    assert kreiss_constant(np.zeros((3, 3))).value == 1.0


def test_complex_operator_is_searched_all_around() -> None:
    jordan_below = jordan(0.0, 4) + np.diag(np.full(4, 0.95 * np.exp(-1.3j)))
    mirrored = jordan_below.conj()
    assert kreiss_constant(jordan_below).value == pytest.approx(
        kreiss_constant(mirrored).value, rel=1e-2
    )
    assert kreiss_constant(jordan_below).point.imag < 0


def test_fit_measures_it_only_when_asked() -> None:
    x, y = noisy_pair(100, 12, seed=5)
    asked = fit(x, y, kreiss=True)
    assert asked.kreiss >= 1.0
    assert asked.kreiss_scale == pytest.approx(1.01 * max(1.0, asked.spectral_radius))
    assert fit(x, y).kreiss is None
