"""Analyze a square real operator: eigenvalues, their condition, and norms.

All computations use LAPACK on the CPU, in float64 but for the vectors of large operators. The
eigenvector matrix `V` of a real operator is kept in LAPACK's packed real form `R`: one column per
real eigenvalue; real and imaginary part, both times sqrt 2, per conjugate pair. `V = R Q` with `Q`
unitary, so `R` has the condition of `V`, and its inverse gives the left vectors at a third of the
cost of complex arithmetic.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import lapack
from scipy.sparse.linalg import ArpackError, svds

from rksp.ground.model import definite

_DENSE_NORM = 96  # below this an SVD is as fast as Lanczos
_MIXED = 192  # modes, from which float32 pays
_MIXED_CONDITION = 1e4  # kappa(V) beyond which vectors in float32 are too rough
_MOST_TURN = 0.02  # of the vectors in float32, beyond which they mix
_SINGULAR = 1e-15  # reciprocal condition below which the inverse of V is only noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EigenSystem:
    """The eigenvalues of a real operator with its left vectors.

    Attributes:
        eigenvalues: `[n]` complex128, by descending modulus, then real, then imaginary part.
        condition: kappa(V) = ||V|| ||V^-1|| for unit right eigenvectors; None if `V` is singular
            to working precision (a defective operator).
        left_rows: `[n, n]` float64. Row pairs of a conjugate pair are the real and imaginary
            part of one left vector; a real eigenvalue has one row.
        pair: `[n]` index of the row that completes row i, itself for a real eigenvalue.
        order: `[n]` position in `left_rows` of each sorted eigenvalue.
    """

    eigenvalues: np.ndarray
    condition: float | None
    left_rows: np.ndarray
    pair: np.ndarray
    order: np.ndarray

    def left_ratio(self, numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
        """Compute `(u* S u) / (u* diag(w) u)` for the left vector u of every eigenvalue, sorted.

        Args:
            numerator: Symmetric `S`, `[n, n]`.
            denominator: Positive weights `w`, `[n]`.

        Returns:
            The ratios, `[n]`.
        """
        rows = self.left_rows
        above = np.einsum("ij,ij->i", rows @ numerator, rows)
        below = np.einsum("ij,ij,j->i", rows, rows, denominator)
        both = self.pair != np.arange(len(self.pair))
        above = above + np.where(both, above[self.pair], 0.0)
        below = below + np.where(both, below[self.pair], 0.0)
        ratios: np.ndarray = (above / below)[self.order]
        return ratios


def eigen_system(operator: np.ndarray) -> EigenSystem | None:
    """Compute eigenvalues, left vectors and kappa(V) of a real operator; None if geev fails.

    The vectors of a large operator are computed in float32, where LAPACK takes half the time, and
    its eigenvalues from them in float64: with unit rows of `V^-1` and columns of `V` their errors
    are of the second order in those of the vectors (Wilkinson, 1965, chapter 2). kappa(V) is exact
    to a few parts in a thousand. Where it is large, all is computed in float64.
    """
    if len(operator) >= _MIXED and (found := _mixed(operator)) is not None:
        return found
    try:
        eigenvalues, vectors = np.linalg.eig(operator)  # scipy would hold the interpreter lock
    except np.linalg.LinAlgError:
        return None
    packed, pair = _packed(eigenvalues, vectors)
    left, condition = _inverse(packed)
    if left is None:  # the right vectors are dependent: the left ones, one by one
        left = np.ascontiguousarray(lapack.dgeev(operator, compute_vl=1, compute_vr=0)[2].T)
    return _sorted(eigenvalues.astype(np.complex128), condition, left, pair)


def _mixed(operator: np.ndarray) -> EigenSystem | None:
    """Compute vectors in float32 and eigenvalues in float64; None where that is not enough.

    The mean eigenvalue is taken away first: an operator near the identity would lose its digits.
    """
    shift = float(operator.trace()) / len(operator)
    centered = operator.astype(np.float32)
    np.fill_diagonal(centered, operator.diagonal() - shift)
    try:
        found = torch.linalg.eig(torch.from_numpy(centered))
    except RuntimeError:  # no convergence
        return None
    eigenvalues, vectors = (part.numpy() for part in found)
    packed, pair = _packed(eigenvalues, vectors.astype(np.complex128))
    left, condition = _inverse(packed)
    if left is None or definite(condition) > _MIXED_CONDITION:
        return None
    blocks = left @ (operator @ packed)  # nearly diagonal, with a block of two for each pair
    values = blocks.diagonal().astype(np.complex128)
    first = np.flatnonzero(eigenvalues.imag > 0)
    one, other = blocks[first, first], blocks[first + 1, first + 1]
    product = blocks[first, first + 1] * blocks[first + 1, first]
    root = np.sqrt(((one - other) / 2) ** 2 + product + 0j)
    values[first], values[first + 1] = (one + other) / 2 + root, (one + other) / 2 - root
    if _turn(blocks, values) > _MOST_TURN:
        return None
    return _sorted(values, condition, left, pair)


def _turn(blocks: np.ndarray, values: np.ndarray) -> float:
    """Return by how much the vectors must still turn: what couples two over their gap, at most.

    For a conjugate pair, which has a block of its own, what couples any two stands in.
    """
    coupling = np.abs(blocks)
    np.fill_diagonal(coupling, 0.0)
    paired = np.flatnonzero(values.imag > 0)
    coupling[paired, paired + 1] = coupling[paired + 1, paired] = 0.0
    coupling[paired, paired + 1] = coupling.max()
    gaps = np.abs(values[:, None] - values)
    np.fill_diagonal(gaps, np.inf)
    return float((coupling / np.maximum(gaps, np.finfo(float).tiny)).max())


def _packed(eigenvalues: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index = np.arange(len(eigenvalues))
    imaginary = eigenvalues.imag
    first, second = imaginary > 0, imaginary < 0  # LAPACK puts the upper one of a pair first
    pair = np.where(first, index + 1, np.where(second, index - 1, index))
    if not np.iscomplexobj(vectors):
        return vectors, pair
    packed = np.where(second, -vectors.imag, vectors.real)
    packed[:, first | second] *= np.sqrt(2.0)
    return packed, pair


def _sorted(
    eigenvalues: np.ndarray, condition: float | None, left: np.ndarray, pair: np.ndarray
) -> EigenSystem:
    order = np.lexsort((-eigenvalues.imag, -eigenvalues.real, -np.abs(eigenvalues)))
    return EigenSystem(
        eigenvalues=eigenvalues[order],
        condition=condition,
        left_rows=left,
        pair=pair,
        order=order,
    )


def _inverse(packed: np.ndarray) -> tuple[np.ndarray | None, float | None]:
    try:
        inverse = np.linalg.inv(packed)
    except np.linalg.LinAlgError:
        return None, None
    if not np.isfinite(inverse).all():
        return None, None
    condition = operator_norm(packed) * operator_norm(inverse)
    if not condition * _SINGULAR < 1.0:
        return None, None
    return inverse, float(condition)


def operator_norm(operator: np.ndarray) -> float:
    """Compute the largest singular value of `[n, m]`, to five digits at least.

    Lanczos' iteration on a large operator is 10 times cheaper than an SVD at n = 768.
    """
    least = min(operator.shape)
    if least > _DENSE_NORM:
        start = np.cos(np.arange(least))  # of no symmetry, and the same for every run
        with suppress(ArpackError):  # it breaks down where all singular values are one, or zero
            found = svds(operator, k=1, tol=1e-5, v0=start, return_singular_vectors=False)
            return float(found[0])
    return float(np.linalg.norm(operator, 2))
