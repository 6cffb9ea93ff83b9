"""Rank decisions and statuses of a fit: each tripped, and each with its negative control."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.oracles import jordan, noisy_pair, states_under

from rksp.documents.spectrum import VARIANTS, Status
from rksp.spectra.dmd import fit

PAPER = VARIANTS["paper-full-1"]


def test_the_rank_cuts_the_subspace() -> None:
    x, y = noisy_pair(200, 16, seed=23)
    variances = np.sort(np.linalg.eigvalsh(np.cov(x.numpy().T)))[::-1]
    cut = fit(x, y, rank=4)
    assert cut.modes == 4
    assert cut.condition == pytest.approx(np.sqrt(variances[0] / variances[3]))


def test_few_states_reduce_the_rank_and_say_so() -> None:
    x, y = noisy_pair(64, 100, seed=24)
    reduced = fit(x, y)
    assert (reduced.status, reduced.modes, reduced.rank_reduced_from) == (Status.OK, 8, 100)
    assert "reduced from 100 to 8" in reduced.status_detail
    assert fit(x, y, rank=100).status is Status.TOO_FEW_STATES
    assert fit(x, y, variant=PAPER).status is Status.TOO_FEW_STATES
    full = fit(*noisy_pair(200, 100, seed=24))
    assert (full.status, full.modes, full.rank_reduced_from) == (Status.OK, 100, None)


def test_too_few_states_for_a_forced_rank_though_not_vacuous() -> None:
    x, y = noisy_pair(22, 16, seed=25)
    assert fit(x, y, rank=16).status is Status.TOO_FEW_STATES
    assert fit(x, y, rank=14).status is Status.OK


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_handful_of_states_is_too_few(count: int) -> None:
    x, y = noisy_pair(count, 4, seed=26)
    spectrum = fit(x, y)
    assert spectrum.status is Status.TOO_FEW_STATES
    assert count > 1 or spectrum.near_unit_mass is None


def test_non_finite_states() -> None:
    x, y = noisy_pair(100, 8, seed=27)
    for bad in (float("nan"), float("inf")):
        spoiled = y.clone()
        spoiled[3, 2] = bad
        spectrum = fit(x, spoiled)
        assert spectrum.status is Status.NON_FINITE
        assert spectrum.near_unit_mass is None
        assert len(spectrum.eigenvalues) == 0
    assert fit(x, y).status is Status.OK
    overflowing = fit(1e200 * x, 1e200 * y)  # finite, but no covariance of it is
    assert overflowing.status is Status.NON_FINITE
    assert fit(1e100 * x, 1e100 * y).status is Status.OK


def test_rank_deficient_status() -> None:
    core = np.diag(np.linspace(0.2, 1.2, 16))
    x, y = states_under(core, 100, seed=28, rank=6)
    assert fit(x, y).status is Status.RANK_DEFICIENT
    assert fit(x, y, rank=8).status is Status.RANK_DEFICIENT
    assert fit(x, y, rank=6).status is Status.OK
    constant = torch.ones(100, 8, dtype=torch.float64)
    still = fit(constant, torch.arange(800.0, dtype=torch.float64).reshape(100, 8))
    assert still.status in (Status.RANK_DEFICIENT, Status.TOO_FEW_STATES)
    assert still.near_unit_mass is None


def test_vanishing_update_status() -> None:
    x, y = noisy_pair(200, 16, seed=29)
    assert fit(x, x + 1e-4 * (y - x)).status is Status.VANISHING_UPDATE
    assert fit(x, x + 1e-1 * (y - x)).status is Status.OK
    shifted = fit(x, x + 5.0)  # a large update that moves every state alike
    assert shifted.update_ratio > 1
    assert shifted.status is Status.VANISHING_UPDATE


def test_ill_conditioned_status_depends_on_the_dtype_of_the_data() -> None:
    rng = np.random.default_rng(30)
    x = torch.from_numpy(rng.standard_normal((300, 16)) * np.geomspace(1.0, 6e-3, 16))
    y = 1.3 * x + 0.1 * x.roll(1, dims=0)
    coarse = fit(x.to(torch.bfloat16), y.to(torch.bfloat16))
    assert coarse.status is Status.ILL_CONDITIONED
    assert "bfloat16" in coarse.status_detail
    assert fit(x.float(), y.float()).status is Status.OK
    assert fit(x.to(torch.bfloat16), y.to(torch.bfloat16), rank=4).status is Status.OK


@pytest.mark.parametrize("size", [8, 32])
def test_a_defective_operator_is_ill_conditioned_and_a_simple_one_is_not(size: int) -> None:
    rng = np.random.default_rng(31)
    simple = np.diag(np.linspace(0.5, 0.95, size)) + 0.01 * rng.standard_normal((size, size))
    assert fit(*states_under(simple, 40 * size, seed=32)).status is Status.OK
    found = fit(*states_under(jordan(0.95, size), 40 * size, seed=33))
    assert found.status is Status.ILL_CONDITIONED and "eigenvectors" in found.status_detail
