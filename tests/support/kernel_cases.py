"""Checks of the Triton launchers against float64, shared by the interpreter and the GPU.

A launcher's error may be at most twice that of the library call of the same precision, plus a
floor of a few float32 roundings for results where the library happens to be exact.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rksp.kernels import newton_schulz as newton
from rksp.kernels import power_iteration as power
from rksp.kernels import router_statistics as router
from rksp.kernels import row_cosine as cosine

# The tensors here are small, and on a busy machine more threads take longer than one.
torch.set_num_threads(1)

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FLOOR = 4 * torch.finfo(torch.float32).eps

by_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).split(".")[1])


def states(*shape: int, seed: int = 0, device: str = "cpu", dtype=torch.float32) -> Tensor:
    """Return Gaussian values that are the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)


def strided(x: Tensor, layout: str) -> Tensor:
    """Return the same values in another memory layout of the last two dimensions."""
    if layout == "transposed":
        return x.mT.contiguous().mT
    if layout == "sliced":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"))
        wide[..., 1::2] = x
        return wide[..., 1::2]
    return x


def assert_as_good(
    result: Tensor, library: Tensor, truth: Tensor, scale: Tensor | None = None
) -> None:
    """Check that the error is at most twice the library's Frobenius error against float64.

    Errors are relative to `scale`. The scale is the norm of the true result, except for sums of
    both signs, where canceling terms leave an error that is large compared with the sum.
    """
    assert torch.isfinite(result).all()
    norm = (truth.norm() if scale is None else scale.double().norm()).clamp_min(1e-300)
    own = ((result.double() - truth).norm() / norm).item()
    other = ((library.double() - truth).norm() / norm).item()
    assert own <= 2 * other + FLOOR, f"error {own:.2e}, library {other:.2e}"


# Each dtype and each layout of the last two dimensions, but not every pair of the two.
by_dtype_and_layout = pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        pytest.param(dtype, layout, id=f"{str(dtype).removeprefix('torch.')}-{layout}")
        for dtype, layout in (
            (torch.float32, "contiguous"),
            (torch.float32, "transposed"),
            (torch.float32, "sliced"),
            (torch.float16, "transposed"),
            (torch.bfloat16, "sliced"),
        )
    ],
)


def check_symmetric_product(device: str, dtype, shape: tuple[int, ...], layout: str) -> None:
    a = strided(states(*shape, seed=3, device=device, dtype=dtype), layout)
    result = newton.symmetric_product_triton(a)
    assert result.dtype == dtype and torch.equal(result, result.mT)
    assert_as_good(result, a @ a.mT, a.double() @ a.double().mT)
    # The polynomial needs symmetric matrices, scaled so that both terms matter.
    s = (result.double() / a.shape[-1]).to(dtype)
    s = torch.tril(s) + torch.tril(s, -1).mT
    truth = -2.5 * s.double() + 0.5 * s.double() @ s.double()
    assert_as_good(newton.symmetric_product_triton(s, -2.5, 0.5), -2.5 * s + 0.5 * (s @ s), truth)


def check_polar_factor(device: str, dtype, shape: tuple[int, ...]) -> None:
    x = states(*shape, seed=4, device=device, dtype=dtype)
    result = newton.polar_factor(x, 8, newton.symmetric_product_triton)
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    reference = newton.polar_factor(x, 8, newton.symmetric_product_reference)
    assert_as_good(result, reference, u @ vh)


def check_top_singular(device: str, dtype, shape: tuple[int, int], layout: str) -> None:
    weights = []
    for seed in range(3):
        spike = states(shape[0], 1, seed=seed) @ states(1, shape[1], seed=seed + 9)
        weight = states(*shape, seed=seed + 5) + spike
        weights.append(strided(weight.to(device=device, dtype=dtype), layout))
    result = power.top_singular_triton(weights, iterations=6)
    library = power.top_singular_reference(weights, iterations=6)
    truth = torch.stack([torch.linalg.svdvals(weight.double())[0] for weight in weights])
    assert_as_good(result.sigma, library.sigma, truth)
    torch.testing.assert_close(result.sigma.double(), truth, rtol=1e-3, atol=0)
    for index, weight in enumerate(weights):
        value = result.u[index].double() @ weight.double() @ result.v[index].double()
        torch.testing.assert_close(value, result.sigma[index].double(), rtol=1e-4, atol=0)


def check_row_cosine(device: str, dtype, shape: tuple[int, int], vectors: int, layout: str) -> None:
    x = strided(states(*shape, seed=6, device=device, dtype=dtype) + 0.1, layout)
    v = states(vectors, shape[1], seed=7, device=device)
    if shape[0] > 3:
        x[1] = 0
        x[2] = float("nan")
    result = cosine.row_cosine_triton(x, v)
    truth = cosine.row_cosine_reference(x.double(), v.double())
    library = cosine.row_cosine_reference(x.float(), v)
    magnitude = (truth.rows * truth.total_squares).sqrt()
    assert_as_good(result.total, library.total, truth.total.double(), magnitude)
    assert_as_good(result.total_squares, library.total_squares, truth.total_squares.double())
    assert torch.equal(result.rows, truth.rows)
    assert torch.equal(result.histogram.sum(1), result.rows)
    # Counts may differ for rows within rounding of a bin edge or of zero: here, of none to one.
    for name in ("positive", "negative", "histogram"):
        moved = (getattr(result, name) - getattr(truth, name)).abs().sum()
        assert moved <= 2, name


def check_router_statistics(
    device: str, dtype, shape: tuple[int, int], top_k: int, is_sigmoid: bool, layout: str
) -> None:
    logits = strided(3 * states(*shape, seed=8, device=device, dtype=dtype), layout)
    if shape[0] > 3 and shape[1] > 3:
        logits[0, 1] = -math.inf
        logits[1, 2] = math.nan
        logits[2] = -math.inf
        logits[4:5, 0] = math.inf
        logits[3] = 1.0  # all equal: the lower index is chosen
    result = router.router_statistics_triton(logits, top_k, is_sigmoid=is_sigmoid)
    truth = router.router_statistics_reference(logits.double(), top_k, is_sigmoid=is_sigmoid)
    library = router.router_statistics_reference(logits.float(), top_k, is_sigmoid=is_sigmoid)
    own, other, exact = (part.entropy for part in (result, library, truth))
    assert torch.equal(own.isnan(), exact.isnan())
    assert_as_good(own.nan_to_num(), other.nan_to_num(), exact.nan_to_num().double())
    assert torch.equal(result.load, truth.load)
