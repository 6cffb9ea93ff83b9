"""Compute the subspace of a spectrum from hidden states: distinct states, POD, folds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh, lapack
from torch import Tensor

from rksp.ground.errors import InputError

# Smallest variance worth keeping, relative to the largest: the square of a dtype's resolution.
# The covariance of float64 data has its own round-off, so float64 gains nothing over float32.
_VARIANCE_FLOOR = {
    torch.float64: 1e-13,
    torch.float32: 1e-13,
    torch.float16: 1e-6,
    torch.bfloat16: 1e-5,
}
MAX_FOLDS = 32
_BLOCKS = 8  # folds without sequences; halves would leave fewer states than modes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistinctStates:
    """State pairs without repetitions, centered, in float64.

    Attributes:
        x: `[states, width]`, centered.
        y: Same shape, centered by its own mean.
        x_mean: `[width]`; holds NaN or infinity if any state does.
        y_mean: `[width]`.
        sequence: `[states]` int64, or None.
        given: Number of pairs before repetitions were removed.
        distinct_inputs: Number of distinct rows of `x`. It is below the number of pairs if one
            input has several outputs. (The first block of a model without absolute positions sees
            one state per token.) Such pairs all enter the fit, but only distinct inputs can carry
            modes.
        dtype: Data type of the given states.
    """

    x: np.ndarray
    y: np.ndarray
    x_mean: np.ndarray
    y_mean: np.ndarray
    sequence: np.ndarray | None
    given: int
    distinct_inputs: int
    dtype: torch.dtype

    @property
    def is_finite(self) -> bool:
        """Whether there is no NaN, no infinity, and no square that overflows float64."""
        means = np.isfinite(self.x_mean).all() and np.isfinite(self.y_mean).all()
        return bool(means and np.isfinite(np.vdot(self.x, self.x) + np.vdot(self.y, self.y)))

    @property
    def variance_floor(self) -> float:
        """Relative variance below which a direction is round-off of the data's dtype."""
        return _VARIANCE_FLOOR[self.dtype]

    @property
    def round_off(self) -> float:
        """Relative error of one stored number."""
        return float(torch.finfo(self.dtype).eps) / 2


def distinct_states(x: Tensor, y: Tensor, sequence: Tensor | None = None) -> DistinctStates:
    """Drop repeated pairs (the first of each is kept), convert to float64 and center.

    Raises:
        InputError: The shapes or dtypes are not those of a pair of states.
    """
    if x.ndim != 2 or x.shape != y.shape:
        raise InputError(
            f"States have shapes {tuple(x.shape)} and {tuple(y.shape)}; "
            "give two tensors of one shape [states, width]."
        )
    if x.shape[0] < 1 or x.shape[1] < 1:
        raise InputError(
            f"States have shape {tuple(x.shape)}; give at least one state of at least one number."
        )
    if x.dtype not in _VARIANCE_FLOOR or y.dtype not in _VARIANCE_FLOOR:
        raise InputError(
            f"States are {x.dtype} and {y.dtype}; give float64, float32, float16 or bfloat16."
        )
    if sequence is not None and sequence.shape != x.shape[:1]:
        raise InputError(
            f"sequence has shape {tuple(sequence.shape)} for {x.shape[0]} states; "
            "give one index per state."
        )
    x, y = x.detach().cpu(), y.detach().cpu()
    x_rows, y_rows = _row_bytes(x), _row_bytes(y)
    first: dict[tuple[bytes, bytes], int] = {}
    for index, pair in enumerate(zip(x_rows, y_rows, strict=True)):
        first.setdefault(pair, index)
    dtype = max(x.dtype, y.dtype, key=_VARIANCE_FLOOR.__getitem__)
    groups = None if sequence is None else sequence.detach().cpu().numpy().copy()
    if len(first) < len(x):
        kept = torch.tensor(list(first.values()))
        x, y = x[kept], y[kept]
        groups = None if groups is None else groups[kept.numpy()]
    x64, y64 = (np.array(t.to(torch.float64).numpy(), copy=True, order="C") for t in (x, y))
    with np.errstate(invalid="ignore", over="ignore"):
        x_mean, y_mean = x64.mean(axis=0), y64.mean(axis=0)
        x64 -= x_mean
        y64 -= y_mean
    return DistinctStates(
        x=x64,
        y=y64,
        x_mean=x_mean,
        y_mean=y_mean,
        sequence=groups,
        given=len(x_rows),
        distinct_inputs=len(set(x_rows)),
        dtype=dtype,
    )


def _row_bytes(states: Tensor) -> list[bytes]:
    raw = states.contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in raw]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subspace:
    """Leading principal directions of centered states (POD).

    Attributes:
        basis: `[width, modes]`, orthonormal columns, by falling variance.
        variances: `[modes]` float64, with divisor states - 1.
        total_variance: Variance of all directions.
    """

    basis: np.ndarray
    variances: np.ndarray
    total_variance: float

    @property
    def modes(self) -> int:
        """Number of directions."""
        return len(self.variances)

    @property
    def condition(self) -> float:
        """Largest over smallest kept standard deviation."""
        return float(np.sqrt(self.variances[0] / self.variances[-1]))

    @property
    def discarded_energy(self) -> float:
        """Share of the variance outside the subspace."""
        return max(0.0, 1.0 - float(self.variances.sum()) / self.total_variance)


def principal_subspace(x: np.ndarray, *, floor: float, rank: int | None = None) -> Subspace | None:
    """Choose the principal directions to keep; None if the states do not vary.

    Args:
        x: Centered states, `[states, width]` float64.
        floor: Smallest kept variance relative to the largest.
        rank: Keep at most this many directions.

    Returns:
        The subspace.
    """
    states, width = x.shape
    total = float(np.vdot(x, x)) / max(states - 1, 1)
    if states < 2 or not total > 0.0:
        return None
    small = states <= width  # the Gram matrix of states has the same spectrum and is smaller
    matrix = (x @ x.T if small else x.T @ x) / (states - 1)  # numpy computes both with SYRK
    size = len(matrix)
    if rank is not None and rank < size // 4:
        variances, vectors = eigh(matrix, subset_by_index=[size - rank, size - 1])
    else:
        variances, vectors = np.linalg.eigh(matrix)  # releases the interpreter lock
    variances, vectors = variances[::-1], vectors[:, ::-1]
    keep = int(np.count_nonzero(variances > floor * variances[0]))
    keep = min(keep, states - 1, width)  # centering costs one direction
    if rank is not None:
        keep = min(keep, rank)
    variances, vectors = variances[:keep].copy(), vectors[:, :keep]
    basis = x.T @ vectors / np.sqrt((states - 1) * variances) if small else vectors
    return Subspace(basis=np.ascontiguousarray(basis), variances=variances, total_variance=total)


def held_out_error(
    white: np.ndarray,
    shrinkage: np.ndarray,
    errors: np.ndarray,
    weights: np.ndarray,
    sequence: np.ndarray | None,
) -> float | None:
    """Sum the squared errors of all states, each predicted without its own fold.

    This is exact without refitting (the block form of leave-one-out, Allen 1974): with hat matrix
    `H = Z F Z'/n + 11'/N`, the held-out errors of fold g are `(I - H_gg)^-1 E_g`.

    Args:
        white: Whitened inputs `Z`, `[states, modes]`, `Z'Z = (states - 1) I`.
        shrinkage: `[modes]`, one for least squares, w / (w + eps) for ridge.
        errors: In-sample errors, `[states, modes]`.
        weights: Weight of each column's squared errors, `[modes]`.
        sequence: `[states]`; folds hold whole sequences if there are at least two.

    Returns:
        The sum; None if a fold leaves too few states to fit.
    """
    states, modes = white.shape
    total = 0.0
    for fold in _folds(states, sequence):
        if states - len(fold) - 1 <= modes:
            return None
        z = white[fold]
        gap = np.eye(len(fold)) - 1.0 / states - (z * shrinkage) @ z.T / (states - 1)
        _, solved, info = lapack.dposv(gap, errors[fold])
        if info != 0:
            return None
        total += float(np.einsum("ij,ij,j->", solved, solved, weights))
    return total


def _folds(states: int, sequence: np.ndarray | None) -> list[np.ndarray]:
    labels = None if sequence is None else np.unique(sequence, return_inverse=True)[1]
    if labels is None or labels.max() == 0:
        return [f for f in np.array_split(np.arange(states), _BLOCKS) if len(f)]
    groups = int(labels.max()) + 1
    fold = labels * min(MAX_FOLDS, groups) // groups
    return [np.flatnonzero(fold == f) for f in range(int(fold.max()) + 1)]
