"""Spectra of single blocks: laws of the estimator, planted systems, statuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.oracles import (
    centered,
    distance,
    jordan,
    noisy_pair,
    pydmd_eigenvalues,
    real_blocks,
    rotation,
    same_bits,
    similar,
    spectrum_of,
    states_under,
    whitened_eigenvalues,
)

from rksp.documents.spectrum import VARIANTS, Status, Variant
from rksp.ground.errors import InputError
from rksp.spectra import dmd

PAPER = dataclasses.replace(VARIANTS["paper-full-1"], max_residual=np.inf)
OURS = dataclasses.replace(VARIANTS["rksp-1"], max_residual=np.inf)  # residuals too, and all modes
UNIT_CIRCLE = [0.99j, complex(0.6, 0.8), complex(-0.28, 0.96), 1.0, -1.0, 0.5, 1.2, 0.85]


def fit(x: torch.Tensor, y: torch.Tensor, **options):
    return dmd.fit(x, y, **({"variant": OURS} | options))


# --- the estimator ---------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-8, 1e-5, 1.0])
@pytest.mark.parametrize(("states", "width"), [(200, 24), (20, 24)])
def test_whitening_changes_no_eigenvalue(epsilon: float, states: int, width: int) -> None:
    x, y = noisy_pair(states, width, seed=1)
    plain = fit(x, y, rank=width)
    white = fit(x, y, variant=dataclasses.replace(PAPER, epsilon=epsilon))
    assert distance(white.eigenvalues, plain.eigenvalues) < 1e-10
    assert np.allclose(white.residuals, plain.residuals, atol=1e-10)
    published = whitened_eigenvalues(x, y, epsilon)
    published = published[np.argsort(-np.abs(published))][: plain.modes]
    # pinv works off the subspace too, where round-off is amplified by 1/sqrt(epsilon)
    assert distance(plain.eigenvalues, published) < 1e-7


def test_whitening_changes_the_condition_of_the_eigenvectors() -> None:
    x, y = noisy_pair(200, 24, seed=1)
    raw = fit(x, y, variant=dataclasses.replace(PAPER, epsilon=1e6))
    assert abs(raw.eigenvector_condition / fit(x, y).eigenvector_condition - 1) > 0.1


@pytest.mark.parametrize(("states", "width"), [(300, 40), (64, 12)])
def test_eigenvalues_are_those_of_pydmd(states: int, width: int) -> None:
    x, y = noisy_pair(states, width, seed=3)
    assert distance(fit(x, y).eigenvalues, pydmd_eigenvalues(x, y)) < 1e-8


def test_eigenvalues_survive_badly_scaled_inputs() -> None:
    x, y = noisy_pair(300, 30, seed=4)
    stretch = torch.from_numpy(np.geomspace(1.0, 1e-5, 30))
    spectrum = fit(x * stretch, y * stretch)
    assert spectrum.modes == 30
    assert distance(spectrum.eigenvalues, pydmd_eigenvalues(x * stretch, y * stretch)) < 1e-6


# --- residuals -------------------------------------------------------------------------------


def test_residuals_are_those_of_the_left_vectors() -> None:
    x, y = noisy_pair(150, 10, seed=5)
    spectrum = fit(x, y)
    xc, yc = centered(x), centered(y)
    operator = np.linalg.lstsq(xc, yc, rcond=None)[0].T
    values, left = np.linalg.eig(operator.T)
    for value, u in zip(values, left.T, strict=True):
        by_definition = np.linalg.norm((yc - value * xc) @ u) / np.linalg.norm(xc @ u)
        by_energy = np.linalg.norm(yc @ u) ** 2 / np.linalg.norm(xc @ u) ** 2 - abs(value) ** 2
        mode = np.argmin(np.abs(spectrum.eigenvalues - value))
        assert spectrum.residuals[mode] == pytest.approx(by_definition, rel=1e-8)
        assert spectrum.residuals[mode] ** 2 == pytest.approx(by_energy, rel=1e-6)


def test_residuals_vanish_when_states_are_fewer_than_the_width() -> None:
    x, y = noisy_pair(20, 24, seed=6)
    vacuous = fit(x, y, rank=24)
    assert vacuous.residuals.max() < 1e-8
    assert vacuous.nonlinearity < 1e-6
    assert vacuous.status is Status.TOO_FEW_STATES
    assert fit(*noisy_pair(200, 24, seed=6)).residuals.min() > 1e-3


def test_filter_counts_only_modes_with_small_residuals() -> None:
    x, y = noisy_pair(200, 24, seed=7)
    cut = float(np.median(fit(x, y).residuals))
    filtered = fit(x, y, variant=dataclasses.replace(PAPER, max_residual=cut))
    kept = np.abs(filtered.eigenvalues[filtered.residuals <= cut])
    assert 0 < len(kept) < filtered.modes
    assert filtered.near_unit_mass == pytest.approx(np.mean((kept >= 0.9) & (kept <= 1.05)))
    none = fit(x, y, variant=dataclasses.replace(PAPER, max_residual=1e-9))
    assert none.near_unit_mass is None


# --- invariances -----------------------------------------------------------------------------


def test_spectrum_is_invariant_under_changes_of_coordinates() -> None:
    x, y = noisy_pair(200, 16, seed=8)
    plain = fit(x, y)
    turned = torch.from_numpy(rotation(16, 9))
    sheared = torch.from_numpy(np.diag(np.geomspace(1, 30, 16)) + 0.1 * rotation(16, 10))
    for transform in (turned, 7.0 * torch.eye(16, dtype=torch.float64), sheared):
        moved = fit(x @ transform, y @ transform)
        assert distance(moved.eigenvalues, plain.eigenvalues) < 1e-9
        assert moved.near_unit_mass == plain.near_unit_mass
    raw = fit(x, y, variant=dataclasses.replace(PAPER, epsilon=1e8))
    raw_sheared = fit(x @ sheared, y @ sheared, variant=dataclasses.replace(PAPER, epsilon=1e8))
    assert abs(raw_sheared.eigenvector_condition / raw.eigenvector_condition - 1) > 0.1


def test_a_constant_added_to_all_states_changes_nothing() -> None:
    x, y = noisy_pair(200, 16, seed=11)
    moved = fit(x + 3.0, y - 5.0)
    plain = fit(x, y)
    assert distance(moved.eigenvalues, plain.eigenvalues) < 1e-9
    assert moved.update_ratio_centered == pytest.approx(plain.update_ratio_centered)
    assert moved.update_ratio > plain.update_ratio


def test_repeated_states_change_nothing() -> None:
    x, y = noisy_pair(100, 16, seed=12)
    plain = fit(x, y)
    repeated = fit(torch.cat([x, x, x[:7]]), torch.cat([y, y, y[:7]]))
    assert repeated.states == 100
    assert np.array_equal(repeated.eigenvalues, plain.eigenvalues)
    few = fit(*(t.repeat(8, 1) for t in noisy_pair(12, 16, seed=12)), rank=16)
    assert few.modes == few.distinct_inputs - 1 == 11


def test_one_input_with_many_outputs_counts_once_as_an_input() -> None:
    x, y = noisy_pair(64, 16, seed=13)
    spectrum = fit(x[:20].repeat(5, 1), torch.cat([y, y + 1])[:100])
    assert (spectrum.states, spectrum.distinct_inputs) == (100, 20)
    assert spectrum.rank_reduced_from == 16
    assert spectrum.modes == 20 // 8


# --- known answers ---------------------------------------------------------------------------


def test_identity_and_doubling() -> None:
    x, _ = noisy_pair(100, 16, seed=14)
    same = fit(x, x)
    assert same.near_unit_mass == 1.0
    assert same.spectral_radius == pytest.approx(1.0)
    assert same.nonlinearity is None
    assert same.status is Status.VANISHING_UPDATE
    twice = fit(x, 2 * x)
    assert twice.expansive_mass == 1.0
    assert twice.energy_gain == pytest.approx(4.0)
    assert twice.status is Status.OK


def test_noise_spreads_the_identity_over_a_disc_of_the_predicted_radius() -> None:
    width, states, sigma = 128, 2048, 0.3
    x, y = states_under(np.eye(width), states, seed=15, noise=sigma)
    spectrum = fit(x, y)
    predicted = sigma * np.sqrt(width / (states - 1 - width))
    assert np.abs(spectrum.eigenvalues - 1).max() == pytest.approx(predicted, rel=0.15)


@pytest.mark.parametrize("condition", [1.0, 50.0])
def test_planted_spectrum_is_recovered(condition: float) -> None:
    operator = similar(real_blocks(UNIT_CIRCLE), condition=condition, seed=16)
    spectrum = fit(*states_under(operator, 400, seed=17))
    expected = spectrum_of(UNIT_CIRCLE)
    moduli = np.abs(expected)
    assert distance(spectrum.eigenvalues, expected) < 1e-9
    assert spectrum.residuals.max() < 1e-8
    assert spectrum.near_unit_mass == pytest.approx(np.mean((moduli >= 0.9) & (moduli <= 1.05)))
    assert spectrum.expansive_mass == pytest.approx(np.mean(moduli > 1.05))
    assert spectrum.contractive_mass == pytest.approx(np.mean(moduli < 0.8))
    assert spectrum.nonlinearity < 1e-6


def test_normal_operator_has_no_departure() -> None:
    core = real_blocks([complex(0.6, 0.7), 0.8, -0.3])
    axes = np.concatenate([np.eye(4), -np.eye(4)] * 4)
    x = torch.from_numpy(axes * np.repeat([1, 2, 3, 4], 8)[:, None])
    normal = fit(x, x @ torch.from_numpy(core.T))  # whitening only scales
    assert normal.nonnormality < 1e-6
    assert normal.eigenvector_condition == pytest.approx(1.0)
    bent = fit(x, x @ torch.from_numpy(similar(core, condition=30.0, seed=18).T))
    assert bent.nonnormality > 0.3
    assert bent.eigenvector_condition > 5.0


def test_defective_operator_is_recovered_and_said_to_have_no_eigenbasis() -> None:
    operator = np.eye(8) * 0.4
    operator[:3, :3] = jordan(0.9, 3)
    x, y = states_under(operator, 200, seed=19)
    spectrum = fit(x, y)
    # a perturbation e moves a triple eigenvalue by e^(1/3): 1e-15 becomes 1e-5
    assert np.abs(spectrum.eigenvalues[:3] - 0.9).max() < 1e-3
    assert np.abs(spectrum.eigenvalues[3:] - 0.4).max() < 1e-8
    assert spectrum.eigenvector_condition is None or spectrum.eigenvector_condition > 1e8
    assert np.isfinite(spectrum.residuals).all()


def test_rank_deficient_inputs_show_only_the_modes_they_span() -> None:
    core = real_blocks([0.95, 1.1, 0.5, complex(0.3, 0.4), 0.2, 0.7, -0.6])
    spectrum = fit(*states_under(core, 100, seed=20, rank=5))
    assert spectrum.modes == 5
    assert distance(spectrum.eigenvalues, spectrum_of([0.95, 1.1, 0.5, 0.3 + 0.4j])) < 1e-9
    assert spectrum.status is Status.OK
    assert fit(*states_under(core, 100, seed=20)).modes == 8


def test_nonlinearity_follows_its_definition_at_full_and_reduced_rank() -> None:
    x, y = noisy_pair(200, 16, seed=21)
    xc, yc = centered(x), centered(y)
    for rank in (16, 5):
        basis = np.linalg.svd(xc, full_matrices=False)[2][:rank].T
        coefficients = np.linalg.lstsq(xc @ basis, yc, rcond=None)[0]
        expected = np.linalg.norm(yc - xc @ basis @ coefficients) / np.linalg.norm(yc - xc)
        assert fit(x, y, rank=rank).nonlinearity == pytest.approx(expected, rel=1e-9)


# --- dtypes, determinism, options ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rank_follows_the_precision_of_the_data(dtype: torch.dtype) -> None:
    x, y = states_under(np.diag(np.linspace(0.5, 1.2, 12)), 200, seed=31, rank=9)
    turned = torch.from_numpy(rotation(12, 32))
    rounded = fit((x @ turned).to(dtype), (y @ turned).to(dtype))
    exact = fit(x, y)
    assert exact.modes == 9
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-2, torch.bfloat16: 0.2}[dtype]
    assert rounded.modes == 9
    assert distance(rounded.eigenvalues, exact.eigenvalues) < tolerance


def test_same_input_same_bits() -> None:
    x, y = noisy_pair(300, 120, seed=33)
    first, second = (fit(x.float(), y.float()) for _ in range(2))
    assert same_bits(first, second)
    assert not same_bits(first, fit(x.float(), 1.01 * y.float()))


def test_eigenvalues_come_by_falling_modulus_with_conjugates_together() -> None:
    values = fit(*noisy_pair(200, 24, seed=34)).eigenvalues
    assert (np.diff(np.abs(values)) <= 0).all()
    upper = np.flatnonzero(values.imag > 0)
    assert len(upper) > 0
    assert np.array_equal(values[upper + 1], values[upper].conj())


def test_inputs_are_left_alone() -> None:
    x, y = noisy_pair(100, 8, seed=35)
    before = x.clone(), y.clone()
    fit(x, y.requires_grad_())
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"rank": 2, "variant": VARIANTS["paper-full-1"]}, "fixes its own rank"),
    ],
)
def test_bad_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(*noisy_pair(50, 4, seed=36), **options)


def test_bad_states_are_refused() -> None:
    x, y = noisy_pair(50, 4, seed=37)
    for bad in ((x, y[:40]), (x.long(), y.long()), (x[0], y[0]), (x[:0], y[:0])):
        with pytest.raises(InputError, match="States"):
            fit(*bad)


def test_variants_are_named_and_differ() -> None:
    assert set(VARIANTS) == {"rksp-1", "paper-full-1", "paper-filtered-1"}
    assert all(variant.name == name for name, variant in VARIANTS.items())
    nameless = {dataclasses.replace(v, name="") for v in VARIANTS.values()}
    assert len(nameless) == len(VARIANTS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Variant(name="x").is_published = True
