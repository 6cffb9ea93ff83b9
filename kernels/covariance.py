"""Compute centered covariance and cross-covariance of snapshot pairs in one read of both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rksp.ground.errors import InputError
from rksp.kernels import dispatch

# Rows summed in float32 before a partial sum goes to float64, and the most partials kept.
_ROWS_PER_SPLIT = 4096
_MAX_SPLITS = 16
_PARTIAL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariance:
    """Second moments of snapshots, about their means, divided by the number of rows.

    Attributes:
        mean_x: Mean of `x`, `[width]` float64.
        mean_y: Mean of `y`, `[width]` float64; None without `y`.
        xx: `(X - m)'(X - m) / rows`, `[width, width]` float64, bitwise symmetric.
        yx: `(Y - m_y)'(X - m_x) / rows`, `[width, width]` float64; None without `y`.
        rows: Number of snapshots.
    """

    mean_x: Tensor
    mean_y: Tensor | None
    xx: Tensor
    yx: Tensor | None
    rows: int


def covariance(x: Tensor, y: Tensor | None = None) -> Covariance:
    """Compute the covariance of `x` and the cross-covariance of `y` with `x`.

    The reference works in float64. The kernel multiplies float32 values as three TF32 products. It
    adds in float32 over at most 4096 rows, then in float64. It resolves singular values down to
    about 1e-3 of the largest, so use it for previews and never for a full-rank fit.

    Args:
        x: Snapshots, `[rows, width]`, float64, float32, bfloat16 or float16, any strides.
        y: Their successors, of the same shape, dtype and device.

    Returns:
        The moments.

    Raises:
        InputError: `x` is not two-dimensional, not floating or has no row, or `y` differs from it.
    """
    if x.ndim != 2 or not x.is_floating_point() or x.shape[0] == 0:
        raise InputError(
            f"covariance needs floating snapshots [rows, width] with at least one row, got "
            f"{list(x.shape)} {x.dtype}. Flatten batch and sequence first."
        )
    if y is not None and (y.shape != x.shape or y.dtype != x.dtype or y.device != x.device):
        raise InputError(
            f"a snapshot pair must agree in shape, dtype and device, got {list(x.shape)} {x.dtype} "
            f"and {list(y.shape)} {y.dtype}. Pass states of the same tokens."
        )
    tensors = (x,) if y is None else (x, y)
    if dispatch.choose("covariance", *tensors).implementation == "triton":
        return covariance_triton(x, y)
    return covariance_reference(x, y)


def covariance_reference(x: Tensor, y: Tensor | None = None) -> Covariance:
    """Compute `covariance` in plain torch and float64, on any device."""
    rows = x.shape[0]
    centered = x.detach().double()
    mean_x = centered.mean(0)
    centered = centered - mean_x
    xx = _symmetric(centered) / rows
    mean_y = yx = None
    if y is not None:
        after = y.double()
        mean_y = after.mean(0)
        yx = (after - mean_y).mT @ centered / rows
    return Covariance(mean_x=mean_x, mean_y=mean_y, xx=xx, yx=yx, rows=rows)


def _symmetric(centered: Tensor) -> Tensor:
    """Return `X'X`, bitwise symmetric."""
    if centered.device.type == "cpu":
        array = centered.numpy()
        return torch.from_numpy(array.T @ array)  # numpy makes this SYRK: half the work of a GEMM
    product = centered.mT @ centered
    # A GEMM sums the two halves in different orders on some machines.
    return torch.tril(product) + torch.tril(product, -1).mT


def covariance_triton(x: Tensor, y: Tensor | None = None) -> Covariance:
    """Compute `covariance` in Triton: half of `xx` is computed; a tile of `x` serves both sums."""
    from rksp.kernels import programs  # triton is loaded only where it runs

    rows, width = x.shape
    mean_x = x.mean(0, dtype=torch.float64)
    mean_y = None if y is None else y.mean(0, dtype=torch.float64)
    # The program centers by the float32 mean; its rounding error is removed exactly below.
    shift_x = mean_x.float()
    shift_y = shift_x if mean_y is None else mean_y.float()
    splits = _splits(rows, width)
    per_split = -(-rows // splits)
    partial_xx = torch.empty(splits, width, width, dtype=torch.float32, device=x.device)
    partial_yx = partial_xx if y is None else torch.empty_like(partial_xx)
    second = x if y is None else y

    def grid(sizes: dict[str, int]) -> tuple[int, int]:
        return -(-width // sizes["BLOCK_M"]) * -(-width // sizes["BLOCK_N"]), splits

    if width:
        programs.covariance[grid](
            x,
            second,
            shift_x,
            shift_y,
            partial_xx,
            partial_yx,
            rows,
            width,
            per_split,
            *x.stride(),
            *second.stride(),
            PAIR=y is not None,
        )
    rest_x = mean_x - shift_x
    xx = partial_xx.sum(0, dtype=torch.float64) / rows - torch.outer(rest_x, rest_x)
    yx = None
    if mean_y is not None:
        yx = partial_yx.sum(0, dtype=torch.float64) / rows
        yx -= torch.outer(mean_y - shift_y, rest_x)
    return Covariance(mean_x=mean_x, mean_y=mean_y, xx=xx, yx=yx, rows=rows)


def _splits(rows: int, width: int) -> int:
    """Return the number of pieces of the rows, within a gigabyte of partial sums."""
    wanted = -(-rows // _ROWS_PER_SPLIT)
    if width <= 2048:
        # 768 columns give about 144 tiles of 64, one per multiprocessor of an H100.
        wanted = max(wanted, min(4, -(-rows // 512)))
    affordable = max(1, _PARTIAL_BYTES // max(1, 8 * width * width))
    return max(1, min(wanted, _MAX_SPLITS, affordable))
