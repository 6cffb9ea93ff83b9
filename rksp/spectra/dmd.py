"""Fit the spectrum of one block: exact dynamic mode decomposition of its states, whitened.

The operator is the centered least-squares fit `A = Y X+` in the coordinates of the kept principal
directions of X, scaled to unit variance (RKSP, arXiv 2602.22988, with the exact pseudo-inverse).
Whitening is a similarity: eigenvalues, masses, rho and residuals are those of plain DMD for every
epsilon. Only kappa(V), norms and Kreiss constants depend on it.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit
from threadpoolctl import ThreadpoolController
from torch import Tensor

from rksp.ground.errors import InputError
from rksp.spectra.kreiss import kreiss_constant
from rksp.spectra.operators import EigenSystem, eigen_system, growth_norms, operator_norm
from rksp.spectra.spectrum import VARIANTS, LayerSpectrum, Variant
from rksp.spectra.status import Status
from rksp.spectra.subspace import (
    DistinctStates,
    Subspace,
    distinct_states,
    held_out_error,
    principal_subspace,
)

__all__ = ["VARIANTS", "LayerSpectrum", "Variant", "fit"]

STATES_PER_MODE = 1.5  # with fewer, in-sample residuals mean nothing
REDUCED_STATES_PER_MODE = 8  # for the rank that is chosen if the width needs too many states
MIN_STATES = 8
VANISHING_UPDATE = 1e-3  # relative to the size of the input
VANISHING_DISTANCE = 1e-2  # root mean square of A - I over the modes
MAX_BLUR = 0.1  # round-off of the data relative to the weakest kept direction
MAX_CONDITION = 1e8  # of the eigenvectors
_REFINE = 1e4  # condition beyond which the whitened covariance is computed again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitJob:
    """A layer that is ready to be solved; it owns its numbers, so it may wait for a thread."""

    states: DistinctStates
    variant: Variant
    rank: int | None
    kreiss: bool
    extras: bool
    name: str
    layer: int


def fit(
    x: Tensor,
    y: Tensor,
    *,
    sequence: Tensor | None = None,
    rank: int | None = None,
    variant: Variant = VARIANTS["rksp-1"],
    kreiss: bool = False,
    extras: bool = True,
    name: str = "",
    layer: int = 0,
    threads: int = 1,
) -> LayerSpectrum:
    """Fit the spectrum of one block.

    Args:
        x: States entering the block, `[states, width]`, any float dtype.
        y: States leaving it; row i belongs to the same token.
        sequence: `[states]` index of the sequence of each state, for held-out folds.
        rank: Keep at most this many principal directions; the width forces a full fit.
        variant: The definition; only one with `rank="auto"` accepts `rank`.
        kreiss: Whether to measure the Kreiss constant too: 0.1 s at 128 modes, 2.4 s at 768.
        extras: Whether to measure growth and the held-out residual too, a tenth of the cost.
        name: Module path of the block, copied to the result.
        layer: Index of the block, copied to the result.
        threads: BLAS threads. More than one slows operators up to about 512 modes and makes the
            last digits depend on the machine.

    Returns:
        The spectrum with its status.

    Raises:
        InputError: The tensors are not a pair of states, or the options contradict each other.
    """
    check_rank(rank, variant)
    job = FitJob(
        states=distinct_states(x, y, sequence),
        variant=variant,
        rank=rank,
        kreiss=kreiss,
        extras=extras,
        name=name,
        layer=layer,
    )
    with blas_threads(threads):
        return solve(job)


def blas_threads(threads: int):
    """Return a context in which numpy and scipy use this many BLAS threads."""
    return _controller().limit(limits=threads, user_api="blas")


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def check_rank(rank: int | None, variant: Variant) -> None:
    """Raise `InputError` for a rank below one or a rank that contradicts the variant."""
    if rank is not None and variant.rank != "auto":
        raise InputError(
            f"Variant {variant.name} fixes its own rank ({variant.rank}); "
            "leave rank out, or use rksp-1."
        )
    if rank is not None and rank < 1:
        raise InputError(f"rank is {rank}; give at least 1.")


def solve(job: FitJob) -> LayerSpectrum:
    """Compute the spectrum of a prepared layer with the current number of BLAS threads."""
    states, variant = job.states, job.variant
    width = states.x.shape[1]
    bare = LayerSpectrum(
        layer=job.layer,
        name=job.name,
        variant=variant.name,
        status=Status.NON_FINITE,
        status_detail="the states or their squares hold NaN or infinity",
        width=width,
        states_given=states.given,
        states=len(states.x),
        distinct_inputs=states.distinct_inputs,
        eigenvalues=np.empty(0, dtype=np.complex128),
        residuals=np.empty(0),
    )
    if not states.is_finite:
        return bare
    inputs = states.distinct_inputs
    target = _target_rank(job, width, inputs)
    subspace = principal_subspace(states.x, floor=states.variance_floor, rank=target)
    if subspace is None:
        few = inputs < 2
        return replace(
            bare,
            status=Status.TOO_FEW_STATES if few else Status.RANK_DEFICIENT,
            status_detail=f"{inputs} distinct input(s)" if few else "the inputs do not vary",
        )
    is_reduced = variant.rank == "auto" and job.rank is None
    bare = replace(
        bare,
        modes=subspace.modes,
        rank_reduced_from=width if is_reduced and target < width else None,
        condition=subspace.condition,
        discarded_energy=subspace.discarded_energy,
        discarded_directions=width - subspace.modes,
    )
    measured = _measure(job, subspace, bare)
    status, detail = _judge(measured, states, target)
    return replace(measured, status=status, status_detail=detail)


def _target_rank(job: FitJob, width: int, inputs: int) -> int:
    rank = job.variant.rank if job.variant.rank != "auto" else job.rank
    if rank == "full":
        return width
    if isinstance(rank, int):
        return min(rank, width)
    if inputs - 1 >= STATES_PER_MODE * width:
        return width
    return max(1, inputs // REDUCED_STATES_PER_MODE)


def _measure(job: FitJob, subspace: Subspace, bare: LayerSpectrum) -> LayerSpectrum:
    """Compute all numbers; `_judge` decides how far they can be trusted."""
    states, variant = job.states, job.variant
    x, y, n = states.x, states.y, len(states.x) - 1
    basis, variances, k = subspace.basis, subspace.variances, subspace.modes
    root = np.sqrt(variances)
    scale = np.sqrt(variances + variant.epsilon)
    shrinkage = variances / scale**2 if variant.is_ridge else np.ones(k)

    white = x @ (basis / root)
    outputs = y @ (basis / scale)
    update = white * (root / scale)
    np.subtract(outputs, update, out=update)
    update_energy = np.einsum("ij,ij->j", update, update)
    cross = outputs.T @ white / n
    if subspace.condition > _REFINE:
        # eigh leaves relative errors of eps * condition^2 in weak variances; one normal equation
        # of the nearly white inputs removes them from the operator.
        cross = np.linalg.solve(white.T @ white / n, cross.T).T
    operator = cross * (shrinkage * scale / root)
    moved = float(update_energy @ scale**2)
    outside = (0.0, 0.0)
    if k < bare.width:
        outside = _outside(states, basis, white, outputs * scale, cross * scale[:, None], shrinkage)
        outside = (outside[0], max(0.0, outside[1] - moved))
    outputs -= white @ (cross * shrinkage).T
    errors = outputs  # the outputs are not needed again; this saves 12 MB

    sums = _sums(states)
    covariance = errors.T @ errors
    error_energy = covariance.diagonal()
    error = float(error_energy @ scale**2)
    white_error, white_moved = float(error_energy.sum()), float(update_energy.sum())
    if variant.epsilon > 0.0 and variant.rank == "full":
        white_error += outside[0] / variant.epsilon
        white_moved += outside[1] / variant.epsilon
    held_out = None
    if job.extras:
        left = held_out_error(white, shrinkage, errors, scale**2, states.sequence)
        held_out = None if left is None else _ratio(left, moved, floor=sums["input"])
    measured = replace(
        bare,
        nonlinearity=_ratio(error + outside[0], sums["update"], floor=sums["input"]),
        nonlinearity_whitened=_ratio(white_error, white_moved, floor=n * k),
        update_ratio=_ratio(sums["raw_update"], sums["raw_input"]),
        update_ratio_centered=_ratio(sums["update"], sums["input"]),
        held_out_residual=held_out,
        noise_radius=_noise_radius(float(error_energy @ (scale / root) ** 2), n, k),
    )
    if not np.isfinite(operator).all():
        return measured
    system = eigen_system(operator)
    if system is None:
        return measured
    squares = system.left_ratio(covariance / n, variances / scale**2)
    return _with_spectrum(
        measured,
        operator,
        system,
        residuals=np.sqrt(np.maximum(squares, 0.0)),
        job=job,
    )


def _sums(states: DistinctStates) -> dict[str, float]:
    """Compute squared Frobenius norms of inputs and updates, centered and raw."""
    difference = states.y - states.x
    update, given = float(np.vdot(difference, difference)), float(np.vdot(states.x, states.x))
    shift = states.y_mean - states.x_mean
    count = len(states.x)
    return {
        "update": update,
        "input": given,
        "raw_update": update + count * float(shift @ shift),
        "raw_input": given + count * float(states.x_mean @ states.x_mean),
    }


def _outside(
    states: DistinctStates,
    basis: np.ndarray,
    white: np.ndarray,
    outputs: np.ndarray,
    cross: np.ndarray,
    shrinkage: np.ndarray,
) -> tuple[float, float]:
    """Compute the squared residual outside the kept directions, and the whole squared update.

    The residual needs only covariances. The update counts inside and outside of the directions.
    """
    n = len(states.x) - 1
    leak = states.y.T @ white / n - basis @ cross
    explained = n * float(((2 - shrinkage) * shrinkage) @ np.einsum("ij,ij->j", leak, leak))
    total = float(np.vdot(states.y, states.y)) - float(np.vdot(outputs, outputs))
    difference = states.y - states.x
    return max(0.0, total - explained), float(np.vdot(difference, difference))


def _ratio(above: float, below: float, *, floor: float = 0.0) -> float | None:
    """Return the root of a ratio of squares; None if the denominator is zero or round-off."""
    return math.sqrt(above / below) if below > 1e-24 * floor and below > 0.0 else None


def _noise_radius(white_error: float, n: int, k: int) -> float | None:
    """Return `sigma sqrt(k / (n - k))`, with the mean whitened residual variance sigma^2."""
    spare = n - k
    return None if spare <= 0 else math.sqrt(white_error / (spare * k) * k / spare)


def _with_spectrum(
    measured: LayerSpectrum,
    operator: np.ndarray,
    system: EigenSystem,
    *,
    residuals: np.ndarray,
    job: FitJob,
) -> LayerSpectrum:
    moduli = np.abs(system.eigenvalues)
    energy = float(np.vdot(operator, operator))
    departure = max(0.0, energy - float(moduli @ moduli))
    sigma = operator_norm(operator)
    constant = kreiss_constant(operator) if job.kreiss else None
    return replace(
        measured,
        eigenvalues=system.eigenvalues,
        residuals=residuals,
        eigenvector_condition=system.condition,
        spectral_radius=float(moduli[0]),
        nonnormality=math.sqrt(departure / energy) if energy > 0.0 else 0.0,
        largest_singular_value=sigma,
        growth=growth_norms(operator, sigma, system) if job.extras else (),
        energy_gain=energy / len(moduli),
        kreiss=None if constant is None else constant.value,
        kreiss_scale=None if constant is None else constant.scale,
        **_masses(moduli, residuals, job.variant),
    )


def _masses(moduli: np.ndarray, residuals: np.ndarray, variant: Variant) -> dict[str, Any]:
    low, high = variant.near_unit
    t = variant.softness
    soft = expit(t * (moduli - low)) * expit(t * (high - moduli))
    kept = moduli if variant.max_residual is None else moduli[residuals <= variant.max_residual]
    found: dict[str, Any] = {
        "soft_near_unit_mass": float(soft.mean()),
        "counted_modes": len(kept),
    }
    if len(kept):
        near, above = (kept >= low) & (kept <= high), kept > high
        below = kept < variant.contractive
        middle = ~(near | above | below)
        for name, mask in (
            ("near_unit", near),
            ("expansive", above),
            ("contractive", below),
            ("middle", middle),
        ):
            found[f"{name}_mass"] = float(mask.mean())
    return found


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
    blur = states.round_off * (found.condition or 1.0)
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
