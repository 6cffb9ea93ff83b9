"""The polar factor and power iteration: known answers and laws."""

from __future__ import annotations

import pytest
import torch
from support.kernel_cases import FLOATS, states

from rksp.ground.errors import InputError
from rksp.kernels.newton_schulz import polar_factor
from rksp.kernels.power_iteration import top_singular

DTYPES = (*FLOATS, torch.float64)


@pytest.mark.parametrize("shape", [(20, 33), (33, 20), (2, 3, 16, 16), (1, 6), (6, 1)], ids=str)
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_polar_factor_is_that_of_the_decomposition(shape, scale):
    u, _, vh = torch.linalg.svd(states(*shape, seed=6).double(), full_matrices=False)
    values = torch.logspace(0, -2, min(shape[-2:]), dtype=torch.float64)
    x = scale * (u * values) @ vh
    torch.testing.assert_close(polar_factor(x), u @ vh, rtol=0, atol=1e-12)
    torch.testing.assert_close(polar_factor(x.float()), (u @ vh).float(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_polar_factor_in_half_is_float32_rounded(dtype):
    x = states(12, 20, seed=7).to(dtype)
    assert torch.equal(polar_factor(x), polar_factor(x.float()).to(dtype))


def test_polar_factor_at_its_edges():
    assert not polar_factor(torch.zeros(3, 4)).any()
    assert polar_factor(torch.zeros(0, 3, 4)).shape == (0, 3, 4)
    # Eight steps do not reach singular values of 1e-4, as the docstring says.
    small = polar_factor(torch.diag(torch.tensor([1.0, 1e-4], dtype=torch.float64)))
    assert small[0, 0] == pytest.approx(1, abs=1e-9) and 0.1 < small[1, 1] < 0.9
    with pytest.raises(InputError, match="step"):
        polar_factor(torch.ones(2, 2), 0)
    with pytest.raises(InputError, match="matrices"):
        polar_factor(states(3))


def weights_with(values, shape, seed):
    u, _, vh = torch.linalg.svd(states(*shape, seed=seed).double(), full_matrices=False)
    return (u * torch.tensor(values, dtype=torch.float64)) @ vh, u, vh


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_top_singular_finds_the_known_triplet(dtype):
    known = [
        weights_with([3.0 * c, 2.0 * c, 1.5 * c, *[0.3 * c] * 9], shape, seed)
        for seed, (shape, c) in enumerate([((12, 40), 1.0), ((40, 12), 5.0), ((12, 40), 1e-3)])
    ]
    weights = [w.to(dtype) for w, _, _ in known]
    result = top_singular(weights)
    coarse = max(torch.finfo(dtype).eps, 1e-6)
    for index, (_, u, vh) in enumerate(known):
        truth = torch.linalg.svdvals(weights[index].double())
        assert result.sigma[index].item() == pytest.approx(truth[0].item(), rel=1e-6)
        assert result.gap[index].item() == pytest.approx((truth[1] / truth[0]).item(), rel=1e-4)
        alignment = (result.v[index].double() @ vh[0]) * (result.u[index].double() @ u[:, 0])
        assert alignment.item() == pytest.approx(1, abs=20 * coarse)
        assert result.residual[index] < 1e-4
    assert result.is_finite.all()


def test_warm_start_tracks_a_moving_weight_and_keeps_the_sign():
    w = weights_with([2.0, 1.9, 1.0, *[0.5] * 9], (12, 40), 1)[0].float()
    before = top_singular([w, w.clone()])
    moved = [w + 1e-3 * states(12, 40, seed=2)] * 2
    warm = top_singular(moved, [-basis for basis in before.state], iterations=1)
    cold = top_singular(moved, iterations=1)
    truth = torch.linalg.svdvals(moved[0].double())[0].item()
    assert abs(warm.sigma[0].item() - truth) < 1e-4 * truth
    assert abs(cold.sigma[0].item() - truth) > 1e-3 * truth
    assert warm.v[0] @ before.v[0] < -0.99  # the sign follows the state that was handed in
    again = top_singular(moved, warm.state)
    assert again.v[0] @ warm.v[0] > 0.99


def test_sigma_is_never_overestimated_and_the_residual_says_when_it_is_not_reached():
    weight = states(64, 64, seed=3)
    hasty = top_singular([weight], iterations=1)
    truth = torch.linalg.svdvals(weight.double())[0].item()
    assert hasty.sigma.item() < truth * (1 + 1e-6)
    assert hasty.residual.item() > 1e-2


def test_top_singular_does_not_depend_on_the_company():
    weights = [states(8, 9, seed=seed) for seed in range(3)]
    together = top_singular([*weights, states(5, 5)])
    for index, weight in enumerate(weights):
        alone = top_singular([weight])
        torch.testing.assert_close(alone.sigma[0], together.sigma[index], rtol=1e-6, atol=0)


def test_top_singular_of_zero_and_of_nan():
    bad = states(4, 6)
    bad[1, 2] = float("nan")
    good = states(4, 6, seed=1)
    result = top_singular([torch.zeros(4, 6), bad, good])
    assert result.is_finite.tolist() == [True, False, True]
    assert result.sigma[0] == 0 and result.residual[0] == 0
    assert result.sigma[1].isnan() and not result.v[1].any()
    torch.testing.assert_close(result.sigma[2], torch.linalg.svdvals(good)[0], rtol=1e-4, atol=0)
    later = top_singular([good] * 3, result.state, iterations=24)
    torch.testing.assert_close(later.sigma, result.sigma[2].expand(3), rtol=1e-4, atol=0)
    assert top_singular([]).sigma.shape == (0,)


@pytest.mark.parametrize("value", [1e30, 1e-30])
def test_top_singular_at_extreme_scales(value):
    result = top_singular([value * torch.eye(3, 5)])
    assert result.is_finite.item() and result.sigma.item() == pytest.approx(value, rel=1e-5)
    assert result.residual.item() < 1e-5
    weight = states(40, 30)
    plain, scaled = (top_singular([factor * weight, weight]) for factor in (1.0, value))
    torch.testing.assert_close(scaled.sigma[0] / value, plain.sigma[0], rtol=1e-5, atol=0)
    assert torch.equal(scaled.sigma[1], plain.sigma[1])


def test_top_singular_refuses():
    with pytest.raises(InputError, match="empty"):
        top_singular([torch.zeros(0, 3)])
    with pytest.raises(InputError, match="iteration"):
        top_singular([torch.ones(3, 3)], iterations=0)
    with pytest.raises(InputError, match="state"):
        top_singular([torch.ones(3, 3)], [torch.ones(4, 3)])
