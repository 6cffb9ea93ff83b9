"""Checks of the Triton launcher against float64, shared by the interpreter and the GPU.

Its error may be at most twice that of the library call of the same precision, plus a
floor of a few float32 roundings for results where the library happens to be exact.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rksp.kernels import power_iteration as power

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


def assert_as_good(result: Tensor, library: Tensor, truth: Tensor) -> None:
    """Check that the error is at most twice the library's Frobenius error against float64."""
    assert torch.isfinite(result).all()
    norm = truth.norm().clamp_min(1e-300)
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
