"""Fit the spectrum of one block: exact dynamic mode decomposition of its states, whitened.

The operator is the centered least-squares fit `A = Y X+` in the coordinates of the kept principal
directions of X, scaled to unit variance (RKSP, arXiv 2602.22988, with the exact pseudo-inverse).
Whitening is a similarity: eigenvalues, masses, rho and residuals are those of plain DMD for every
epsilon. Only kappa(V) and norms depend on it.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.linalg import eigh
from threadpoolctl import ThreadpoolController
from torch import Tensor

from rksp.documents.spectrum import (
    NEAR_UNIT,
    VARIANTS,
    LayerSpectrum,
    SpectralProfile,
    Status,
    Variant,
)
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.spectra.operators import EigenSystem, eigen_system

if TYPE_CHECKING:  # the annotation must not load the modules that open models
    from rksp.measure.snapshots import LayerTransition

# Smallest variance worth keeping, relative to the largest: the square of a dtype's resolution.
# The covariance of float64 data has its own round-off, so float64 gains nothing over float32.
VARIANCE_FLOOR = {
    torch.float64: 1e-13,
    torch.float32: 1e-13,
    torch.float16: 1e-6,
    torch.bfloat16: 1e-5,
}
STATES_PER_MODE = 1.5  # with fewer, in-sample residuals mean nothing
REDUCED_STATES_PER_MODE = 8  # for the rank that is chosen if the width needs too many states
MIN_STATES = 8
VANISHING_UPDATE = 1e-3  # relative to the size of the input
VANISHING_DISTANCE = 1e-2  # root mean square of A - I over the modes
MAX_BLUR = 0.1  # round-off of the data relative to the weakest kept direction
MAX_CONDITION = 1e8  # of the eigenvectors
_CONTRACTIVE = 0.80  # modulus below which a mode is contractive; the rest is the middle
_REFINE = 1e4  # condition beyond which the whitened covariance is computed again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistinctStates:
    """State pairs without repetitions, centered, in float64.

    Attributes:
        x: `[states, width]`, centered.
        y: Same shape, centered by its own mean.
        x_mean: `[width]`; holds NaN or infinity if any state does.
        y_mean: `[width]`.
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
    distinct_inputs: int
    dtype: torch.dtype

    @property
    def is_finite(self) -> bool:
        """Whether there is no NaN, no infinity, and no square that overflows float64."""
        means = np.isfinite(self.x_mean).all() and np.isfinite(self.y_mean).all()
        return bool(means and np.isfinite(np.vdot(self.x, self.x) + np.vdot(self.y, self.y)))


def distinct_states(x: Tensor, y: Tensor) -> DistinctStates:
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
    if x.dtype not in VARIANCE_FLOOR or y.dtype not in VARIANCE_FLOOR:
        raise InputError(
            f"States are {x.dtype} and {y.dtype}; give float64, float32, float16 or bfloat16."
        )
    x, y = x.detach().cpu(), y.detach().cpu()
    x_rows, y_rows = _row_bytes(x), _row_bytes(y)
    first: dict[tuple[bytes, bytes], int] = {}
    for index, pair in enumerate(zip(x_rows, y_rows, strict=True)):
        first.setdefault(pair, index)
    dtype = max(x.dtype, y.dtype, key=VARIANCE_FLOOR.__getitem__)
    if len(first) < len(x):
        kept = torch.tensor(list(first.values()))
        x, y = x[kept], y[kept]
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
        distinct_inputs=len(set(x_rows)),
        dtype=dtype,
    )


def _row_bytes(states: Tensor) -> list[bytes]:
    raw = states.contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in raw]


def principal_subspace(
    x: np.ndarray, floor: float, rank: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Choose the principal directions of states to keep (POD); None if the states do not vary.

    Args:
        x: Centered states, `[states, width]` float64.
        floor: Smallest kept variance relative to the largest.
        rank: Keep at most this many directions.

    Returns:
        The directions, orthonormal columns `[width, modes]`, and the falling variances along them,
        `[modes]` with divisor states - 1.
    """
    states, width = x.shape
    if states < 2 or not np.vdot(x, x) > 0.0:
        return None
    small = states <= width  # the Gram matrix of states has the same spectrum and is smaller
    matrix = (x @ x.T if small else x.T @ x) / (states - 1)  # numpy computes both with SYRK
    size = len(matrix)
    if rank < size // 4:
        variances, vectors = eigh(matrix, subset_by_index=[size - rank, size - 1])
    else:
        variances, vectors = np.linalg.eigh(matrix)  # releases the interpreter lock
    variances, vectors = variances[::-1], vectors[:, ::-1]
    keep = int(np.count_nonzero(variances > floor * variances[0]))
    keep = min(keep, states - 1, width, rank)  # centering costs one direction
    variances, vectors = variances[:keep].copy(), vectors[:, :keep]
    basis = x.T @ vectors / np.sqrt((states - 1) * variances) if small else vectors
    return np.ascontiguousarray(basis), variances


def fit(
    x: Tensor,
    y: Tensor,
    *,
    rank: int | None = None,
    variant: Variant = VARIANTS["rksp-1"],
    name: str = "",
    layer: int = 0,
) -> LayerSpectrum:
    """Fit the spectrum of one block, with one BLAS thread.

    More threads slow operators up to about 512 modes and make the last digits depend on the
    machine.

    Args:
        x: States entering the block, `[states, width]`, any float dtype.
        y: States leaving it; row i belongs to the same token.
        rank: Keep at most this many principal directions; the width forces a full fit.
        variant: The definition; a published one accepts no `rank`.
        name: Module path of the block, copied to the result.
        layer: Index of the block, copied to the result.

    Returns:
        The spectrum with its status.

    Raises:
        InputError: The tensors are not a pair of states, or the options contradict each other.
    """
    check_rank(rank, variant)
    states = distinct_states(x, y)
    with blas_threads(1):
        return solve(states, variant, rank, name, layer)


def blas_threads(threads: int) -> AbstractContextManager[object]:
    """Return a context in which numpy and scipy use this many BLAS threads."""
    limit: AbstractContextManager[object] = _controller().limit(limits=threads, user_api="blas")
    return limit


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def check_rank(rank: int | None, variant: Variant) -> None:
    """Raise `InputError` for a rank below one or a rank that contradicts the variant."""
    if rank is not None and variant.is_published:
        raise InputError(
            f"Variant {variant.name} fixes its own rank (full); leave rank out, or use rksp-1."
        )
    if rank is not None and rank < 1:
        raise InputError(f"rank is {rank}; give at least 1.")


def solve(
    states: DistinctStates,
    variant: Variant,
    rank: int | None,
    name: str,
    layer: int,
) -> LayerSpectrum:
    """Compute the spectrum of prepared states with the current number of BLAS threads."""
    width = states.x.shape[1]
    bare = LayerSpectrum(
        layer=layer,
        name=name,
        variant=variant.name,
        status=Status.NON_FINITE,
        status_detail="the states or their squares hold NaN or infinity",
        width=width,
        states=len(states.x),
        distinct_inputs=states.distinct_inputs,
        eigenvalues=np.empty(0, dtype=np.complex128),
        residuals=np.empty(0),
    )
    if not states.is_finite:
        return bare
    inputs = states.distinct_inputs
    target = _target_rank(variant, rank, width, inputs)
    subspace = principal_subspace(states.x, VARIANCE_FLOOR[states.dtype], target)
    if subspace is None:
        few = inputs < 2
        return replace(
            bare,
            status=Status.TOO_FEW_STATES if few else Status.RANK_DEFICIENT,
            status_detail=f"{inputs} distinct input(s)" if few else "the inputs do not vary",
        )
    is_reduced = not variant.is_published and rank is None
    bare = replace(
        bare,
        modes=len(subspace[1]),
        rank_reduced_from=width if is_reduced and target < width else None,
        condition=float(np.sqrt(subspace[1][0] / subspace[1][-1])),
    )
    measured = _measure(states, variant, *subspace, bare)
    status, detail = _judge(measured, states, target)
    return replace(measured, status=status, status_detail=detail)


def _target_rank(variant: Variant, rank: int | None, width: int, inputs: int) -> int:
    if rank is not None:
        return min(rank, width)
    if variant.is_published or inputs - 1 >= STATES_PER_MODE * width:
        return width
    return max(1, inputs // REDUCED_STATES_PER_MODE)


def _measure(
    states: DistinctStates,
    variant: Variant,
    basis: np.ndarray,
    variances: np.ndarray,
    bare: LayerSpectrum,
) -> LayerSpectrum:
    """Compute all numbers; `_judge` decides how far they can be trusted."""
    x, y, n = states.x, states.y, len(states.x) - 1
    root = np.sqrt(variances)
    scale = np.sqrt(variances + variant.epsilon)

    white = x @ (basis / root)
    outputs = y @ (basis / scale)
    cross = outputs.T @ white / n
    if definite(bare.condition) > _REFINE:
        # eigh leaves relative errors of eps * condition^2 in weak variances; one normal equation
        # of the nearly white inputs removes them from the operator.
        cross = np.linalg.solve(white.T @ white / n, cross.T).T
    operator = cross * (scale / root)
    outside = 0.0
    if bare.modes < bare.width:
        outside = _outside(states, basis, white, outputs * scale, cross * scale[:, None])
    outputs -= white @ cross.T
    errors = outputs  # the outputs are not needed again; this saves 12 MB

    update, given, raw_update, raw_input = _sums(states)
    error = float(np.einsum("ij,ij->j", errors, errors) @ scale**2)
    measured = replace(
        bare,
        nonlinearity=_ratio(error + outside, update, floor=given),
        update_ratio=_ratio(raw_update, raw_input),
        update_ratio_centered=_ratio(update, given),
    )
    if not np.isfinite(operator).all():
        return measured
    system = eigen_system(operator)
    if system is None:
        return measured
    residuals = np.empty(0)  # only a definition that filters by them reads them
    if variant.max_residual is not None:
        squares = system.left_ratio(errors.T @ errors / n, variances / scale**2)
        residuals = np.sqrt(np.maximum(squares, 0.0))
    return _with_spectrum(measured, operator, system, residuals, variant)


def _sums(states: DistinctStates) -> tuple[float, float, float, float]:
    difference = states.y - states.x
    update, given = float(np.vdot(difference, difference)), float(np.vdot(states.x, states.x))
    shift = states.y_mean - states.x_mean
    count, mean = len(states.x), states.x_mean
    return update, given, update + count * float(shift @ shift), given + count * float(mean @ mean)


def _outside(
    states: DistinctStates,
    basis: np.ndarray,
    white: np.ndarray,
    outputs: np.ndarray,
    cross: np.ndarray,
) -> float:
    """Compute the squared residual outside the kept directions, which needs only covariances."""
    n = len(states.x) - 1
    leak = states.y.T @ white / n - basis @ cross
    explained = n * float(np.vdot(leak, leak))
    total = float(np.vdot(states.y, states.y)) - float(np.vdot(outputs, outputs))
    return max(0.0, total - explained)


def _ratio(above: float, below: float, *, floor: float = 0.0) -> float | None:
    return math.sqrt(above / below) if below > 1e-24 * floor and below > 0.0 else None


def _with_spectrum(
    measured: LayerSpectrum,
    operator: np.ndarray,
    system: EigenSystem,
    residuals: np.ndarray,
    variant: Variant,
) -> LayerSpectrum:
    moduli = np.abs(system.eigenvalues)
    energy = float(np.vdot(operator, operator))
    departure = max(0.0, energy - float(moduli @ moduli))
    kept = moduli if variant.max_residual is None else moduli[residuals <= variant.max_residual]
    low, high = NEAR_UNIT

    def share(counted: np.ndarray) -> float | None:
        return float(counted.mean()) if len(kept) else None

    return replace(
        measured,
        eigenvalues=system.eigenvalues,
        residuals=residuals,
        eigenvector_condition=system.condition,
        spectral_radius=float(moduli[0]),
        nonnormality=math.sqrt(departure / energy) if energy > 0.0 else 0.0,
        energy_gain=energy / len(moduli),
        near_unit_mass=share((kept >= low) & (kept <= high)),
        expansive_mass=share(kept > high),
        contractive_mass=share(kept < _CONTRACTIVE),
    )


def _judge(found: LayerSpectrum, states: DistinctStates, target: int) -> tuple[Status, str]:
    inputs, k = found.distinct_inputs, found.modes
    if inputs < MIN_STATES or inputs - 1 < STATES_PER_MODE * target:
        why = "; every residual is zero" if inputs - 1 <= target else ""
        return Status.TOO_FEW_STATES, f"{inputs} distinct inputs for {target} modes{why}"
    is_full = target == found.width
    if k < target / 2 if is_full else k < target:
        return Status.RANK_DEFICIENT, f"the inputs span {k} of {target} directions"
    ratio = found.update_ratio_centered
    if ratio is not None and ratio < VANISHING_UPDATE:
        return Status.VANISHING_UPDATE, f"the update is {ratio:.1e} of the input"
    if len(found.eigenvalues) == 0:
        return Status.ILL_CONDITIONED, "the eigenvalue iteration did not converge"
    # ||A - I||_F^2 / k from known quantities: trace(A) is the sum of the eigenvalues.
    gap = (found.energy_gain or 0.0) + 1 - 2 * float(found.eigenvalues.real.mean())
    if gap < VANISHING_DISTANCE**2:
        return Status.VANISHING_UPDATE, f"the operator is within {math.sqrt(max(gap, 0)):.1e} of I"
    blur = torch.finfo(states.dtype).eps / 2 * (found.condition or 1.0)
    if blur > MAX_BLUR:
        dtype = str(states.dtype).removeprefix("torch.")
        return Status.ILL_CONDITIONED, (
            f"the kept directions differ {found.condition:.1e} times in scale, "
            f"and {dtype} blurs the weakest by {blur:.0%}"
        )
    if found.eigenvector_condition is None or found.eigenvector_condition > MAX_CONDITION:
        return Status.ILL_CONDITIONED, (
            "its eigenvectors nearly coincide, so that its eigenvalues change at a rounding error"
        )
    if found.rank_reduced_from is not None:
        return Status.OK, f"rank reduced from {found.width} to {k}: {inputs} distinct inputs"
    return Status.OK, f"{inputs} distinct inputs for {k} modes"


class SpectralAccumulator:
    """Fits each block when it arrives and keeps only its spectrum.

    Threads solve blocks while the forward pass continues. At most as many blocks as there are
    threads wait with their states, so memory stays bounded. Each solve uses one BLAS thread, so
    results do not depend on the number of threads.

    It is also a context manager, which drops pending work if the forward pass fails.

    Args:
        variant: The definition; see `rksp.documents.spectrum.VARIANTS`.
        rank: As for `fit`.
        workers: Number of threads.
    """

    def __init__(
        self,
        *,
        variant: Variant = VARIANTS["rksp-1"],
        rank: int | None = None,
        workers: int = 1,
    ) -> None:
        check_rank(rank, variant)
        if workers < 1:
            raise InputError(f"workers is {workers}; give 1 or more.")
        self._variant, self._rank = variant, rank
        self._jobs: list[Future[LayerSpectrum]] = []
        self._room = BoundedSemaphore(workers)
        self._stack = ExitStack()
        # One limit around all solves: nested limits in threads restore each other's values.
        self._stack.enter_context(blas_threads(1))
        self._pool = self._stack.enter_context(ThreadPoolExecutor(workers, "rksp-spectra"))

    def consume(self, transition: LayerTransition) -> None:
        """Fit one block; its tensors may change or be freed after this returns."""
        states = distinct_states(transition.x, transition.y)
        at = transition.name, transition.layer
        self._room.acquire()
        job = self._pool.submit(solve, states, self._variant, self._rank, *at)
        job.add_done_callback(lambda _: self._room.release())
        self._jobs.append(job)

    def finish(self) -> SpectralProfile:
        """Wait for pending work and aggregate.

        Raises:
            InputError: No block was consumed.
        """
        with self:
            spectra = [job.result() for job in self._jobs]
        return SpectralProfile.of(spectra, self._variant)

    def __enter__(self) -> SpectralAccumulator:
        return self

    def __exit__(self, *error: object) -> None:
        for job in self._jobs:
            job.cancel()
        self._stack.close()
