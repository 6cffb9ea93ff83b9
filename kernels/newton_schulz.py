"""Compute the polar factor of matrices by products alone."""

from __future__ import annotations

import torch
from torch import Tensor

from rksp.ground.errors import InputError

# Amsel et al. (2025), "The Polar Express" (arXiv:2505.16932): the composition of quintics
# a s + b s^3 + c s^5 that is optimal for singular values in [1e-3, 1]. The last one repeats.
_COEFFICIENTS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
_SAFETY = 1.01  # damps every step but the last, so that rounding errors above 1 stay bounded


def polar_factor(x: Tensor, steps: int = 8) -> Tensor:
    """Compute the nearest matrix with orthonormal rows or columns, `U V'` of `X = U S V'`.

    Eight steps reach rounding error for condition numbers up to 1e2 and leave singular values
    below 1e-4 of the largest partly suppressed; a zero matrix stays zero.

    Args:
        x: Matrices, `[..., m, n]`, wide or tall, floating.
        steps: Quintic steps of the Polar Express, at least one.

    Returns:
        The factors, in the shape and dtype of `x`. On the CPU half precision is computed in
        float32; on a GPU in the dtype of `x` with float32 sums.

    Raises:
        InputError: `x` holds no matrices, is not floating, or there is fewer than one step.
    """
    if x.ndim < 2 or not x.is_floating_point():
        raise InputError(
            f"polar_factor needs floating matrices [..., m, n], got {list(x.shape)} {x.dtype}. "
            "Reshape a vector or a convolution to a matrix first."
        )
    if steps < 1:
        raise InputError(f"polar_factor needs at least one step, got {steps}. Use 8.")
    is_tall = x.shape[-2] > x.shape[-1]
    work = x.mT if is_tall else x  # the matrices to multiply have the smaller dimension first
    if x.dtype != torch.float64:
        work = work.float()
    # Scale by the largest entry first, since the squares of a norm overflow; then by the norm. Both
    # scalings leave a zero matrix unchanged.
    largest = work.abs().amax((-2, -1), keepdim=True) if work.numel() else work.sum()
    work = work / torch.where(largest > 0, largest, torch.ones_like(largest))
    norm = torch.linalg.matrix_norm(work, keepdim=True)
    work = work / (_SAFETY * torch.where(norm > 0, norm, torch.ones_like(norm)))
    if x.device.type != "cpu":  # which has no fast product in half precision
        work = work.to(x.dtype)
    for step in range(steps):
        a, b, c = _COEFFICIENTS[min(step, len(_COEFFICIENTS) - 1)]
        if step < len(_COEFFICIENTS) - 1:
            a, b, c = a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5
        gram = work @ work.mT
        work = a * work + (c * (gram @ gram) + b * gram) @ work
    work = work.to(x.dtype)
    return work.mT if is_tall else work
