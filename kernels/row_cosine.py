"""Compute cosines of many rows with a few vectors: signs, moments, histogram, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rksp.ground.errors import InputError

BINS = 64
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
        vectors: `[k, width]` or `[width]`, floating, nonzero, on the same device. They are
            scaled to unit length.

    Returns:
        The statistics, each with a leading dimension k (1 for a single vector).

    Raises:
        InputError: Shapes do not match, there is no vector, or a tensor is not floating.
    """
    given = vectors[None] if vectors.ndim == 1 else vectors
    if (
        x.ndim < 1
        or given.ndim != 2
        or given.shape[-1] != x.shape[-1]
        or len(given) == 0
        or not x.is_floating_point()
        or not given.is_floating_point()
    ):
        raise InputError(
            "row_cosine needs floating rows [..., width] and vectors [k, width], got "
            f"{list(x.shape)} {x.dtype} and {list(vectors.shape)} {vectors.dtype}. Pass the "
            "singular vectors on the input side of the weight."
        )
    rows = x.reshape(-1, x.shape[-1])
    if rows.dtype != torch.float64:
        rows = rows.float()
    double = given.double()
    units = (double / torch.linalg.vector_norm(double, dim=-1, keepdim=True)).to(rows.dtype)
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
