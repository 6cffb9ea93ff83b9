"""Compute cosines of many rows with a few vectors: signs, moments, histogram, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rksp.ground.errors import InputError
from rksp.kernels import dispatch

BINS = 64
_MAX_VECTORS = 16  # the narrowest tile that a tensor core multiplies
# Rows with a norm outside these limits are not counted: beyond them float32 squares overflow or
# underflow, and a zero row has no cosine.
_NORM_LIMITS = (1e-15, 1e15)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCosine:
    """Statistics of the cosines between the rows of a matrix and each of `k` vectors.

    Attributes:
        rows: Rows counted, those with a norm in [1e-15, 1e15], `[k]` int64.
        positive: Rows with a positive cosine, `[k]` int64.
        negative: Rows with a negative cosine, `[k]` int64.
        total: Sum of the cosines, `[k]` float32.
        total_squares: Sum of their squares, `[k]` float32.
        histogram: Rows in each of 64 equal bins over [-1, 1], `[k, 64]` int64.
    """

    rows: Tensor
    positive: Tensor
    negative: Tensor
    total: Tensor
    total_squares: Tensor
    histogram: Tensor


def row_cosine(x: Tensor, vectors: Tensor) -> RowCosine:
    """Compute statistics of `<x_t, v> / (|x_t| |v|)` over the rows t.

    Source: Spectral Alignment (arXiv 2510.04202).

    Args:
        x: Rows, `[..., width]`, floating, any strides.
        vectors: `[k, width]` or `[width]`, floating, nonzero, on the same device; k <= 16. They
            are scaled to unit length.

    Returns:
        The statistics, each with a leading dimension k (1 for a single vector).

    Raises:
        InputError: Shapes do not match, there are too many vectors, or a tensor is not floating.
    """
    rows = vectors[None] if vectors.ndim == 1 else vectors
    if (
        x.ndim < 1
        or rows.ndim != 2
        or rows.shape[-1] != x.shape[-1]
        or not 1 <= rows.shape[0] <= _MAX_VECTORS
        or not x.is_floating_point()
        or not rows.is_floating_point()
    ):
        raise InputError(
            f"row_cosine needs floating rows [..., width] and 1 to {_MAX_VECTORS} vectors "
            f"[k, width], got {list(x.shape)} {x.dtype} and {list(vectors.shape)} "
            f"{vectors.dtype}. Pass the singular vectors on the input side of the weight."
        )
    if dispatch.takes_triton("row_cosine", x, rows):
        return row_cosine_triton(x, rows)
    return row_cosine_reference(x, rows)


def row_cosine_reference(x: Tensor, vectors: Tensor) -> RowCosine:
    """Compute `row_cosine` in plain torch, on any device."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.dtype != torch.float64:
        rows = rows.float()
    units = _units(vectors).to(rows.dtype)
    norms = torch.linalg.vector_norm(rows, dim=-1)
    valid = (norms >= _NORM_LIMITS[0]) & (norms <= _NORM_LIMITS[1])
    cosines = (rows @ units.mT) / torch.where(valid, norms, torch.ones_like(norms))[:, None]
    cosines = torch.where(valid[:, None], cosines, torch.zeros_like(cosines)).clamp(-1.0, 1.0)
    bins = ((cosines + 1.0) * (BINS / 2)).long().clamp(max=BINS - 1)
    counted = valid[:, None].expand_as(bins).long()
    histogram = torch.zeros(bins.shape[1], BINS, dtype=torch.int64, device=x.device)
    histogram = histogram.scatter_add(1, bins.mT, counted.mT)
    return RowCosine(
        rows=counted.sum(0),
        positive=(cosines > 0).sum(0),
        negative=(cosines < 0).sum(0),
        total=cosines.sum(0).float(),
        total_squares=cosines.square().sum(0).float(),
        histogram=histogram,
    )


def row_cosine_triton(x: Tensor, vectors: Tensor) -> RowCosine:
    """Compute `row_cosine` in Triton with one read of the rows for all vectors and statistics."""
    from rksp.kernels import programs  # triton is loaded only where it runs

    rows, units = x.reshape(-1, x.shape[-1]), _units(vectors).float().contiguous()
    k, block = len(units), 32
    blocks = -(-len(rows) // block)
    moments = torch.empty(blocks, 2, k, dtype=torch.float32, device=x.device)
    counts = torch.empty(blocks, 3, k, dtype=torch.int32, device=x.device)
    histogram = torch.empty(blocks, k, BINS, dtype=torch.int32, device=x.device)
    if len(rows):
        programs.row_cosine[(blocks,)](
            rows,
            units,
            moments,
            counts,
            histogram,
            *rows.shape,
            *rows.stride(),
            _NORM_LIMITS[0] ** 2,
            _NORM_LIMITS[1] ** 2,
            VECTORS=k,
            PAD=_MAX_VECTORS,
            BLOCK_M=block,
            BLOCK_K=64,
        )
    total, total_squares = moments.sum(0, dtype=torch.float64).float()
    positive, negative, counted = counts.sum(0)
    return RowCosine(
        rows=counted,
        positive=positive,
        negative=negative,
        total=total,
        total_squares=total_squares,
        histogram=histogram.sum(0),
    )


def _units(vectors: Tensor) -> Tensor:
    double = vectors.reshape(-1, vectors.shape[-1]).double()
    norms: Tensor = torch.linalg.vector_norm(double, dim=-1, keepdim=True)
    return double / norms
