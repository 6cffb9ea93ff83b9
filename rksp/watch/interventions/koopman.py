"""The differentiable side of the spectral score: reduced operators of blocks, and their penalties.

Sources: arXiv 2602.22988, §4 (Koopman Spectral Shaping); the energy gain is the quantity of its
Theorem 1. All functions take a batch of layers and return a value for each layer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_WORST_CONDITION = 1e6  # of the eigenvectors; above it an eigenvalue's gradient is noise
_AMPLIFICATION = 100.0  # largest ‖G‖_F over the moduli's gradient; it is 1 for a normal operator


def reduced_operator(
    x: Tensor,
    y: Tensor,
    *,
    basis: Tensor | None = None,
    epsilon: float = 1e-5,
    is_exact: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the whitened operator of each layer, A = V C_yx Vᵀ with V (C_xx + ε s² I) Vᵀ = I.

    V is the inverse Cholesky factor, and s² the mean variance. The symmetric root of the literature
    differs from V by a rotation, so eigenvalues and Frobenius norm are the same. ε shrinks
    eigenvalues: a direction of variance v counts as v / (v + ε s²). It is relative to s², because
    an absolute one would hide how a block amplifies states that have nearly collapsed.

    The gradient flows through both x and y, so that it is that of A in all weights before the
    block, too.

    With `is_exact` there is no ε, as in the published A = Ỹ X̃⁺, whose spectrum is that of Y X⁺.
    Whitening is then in float64, and directions that rounding cannot tell from zero are left out,
    as in a pseudo-inverse.

    Args:
        x: States that enter the block, `[layers, tokens, width]`.
        y: States that leave it, of the same shape.
        basis: Orthonormal columns `[layers, width, rank]` to which both are restricted; constant.
        epsilon: ε.
        is_exact: Whiten without ε.

    Returns:
        A, `[layers, rank, rank]`, and a bool `[layers]` that says whether the factorization
        succeeded. Where it did not, A is that of x in place of whitened states, without a gradient
        through x.
    """
    # y's mean times the rounding errors of x's column sums would not be small beside collapsed x.
    x, y = (part - part.mean(-2, keepdim=True) for part in (x, y))
    if basis is not None:
        x, y = x @ basis, y @ basis
    wide = x.double() if is_exact else x
    covariance = wide.mT @ wide / (x.shape[-2] - 1)
    unit = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    if is_exact:
        kept = _above_rounding(covariance.detach(), x)
        covariance = kept @ covariance @ kept + (unit - kept) * _mean_variance(covariance.detach())
    else:
        kept = unit.expand_as(covariance)
        covariance = covariance + epsilon * _mean_variance(covariance) * unit
    usable = torch.linalg.cholesky_ex(covariance.detach()).info == 0
    covariance = torch.where(usable[:, None, None], covariance, unit)
    factor = torch.linalg.cholesky(covariance)
    inverse = torch.linalg.solve_triangular(factor, kept, upper=False).to(x)
    return inverse @ (y.mT @ (x @ (inverse.mT / (x.shape[-2] - 1)))), usable


def _mean_variance(covariance: Tensor) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]


@torch.no_grad()
def _above_rounding(covariance: Tensor, x: Tensor) -> Tensor:
    """Return the projector on the directions of `x` that rounding can tell from zero."""
    unit = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    finite = covariance.isfinite().all(-1).all(-1)
    variances, vectors = torch.linalg.eigh(torch.where(finite[:, None, None], covariance, unit))
    count = max(x.shape[-2:])
    # numpy's pinv tolerance for singular values, but not below the accuracy of their squares.
    least = max((count * torch.finfo(x.dtype).eps) ** 2, count * torch.finfo(torch.float64).eps)
    return vectors * (variances > least * variances[:, -1:]).unsqueeze(-2) @ vectors.mT


@torch.no_grad()
def refine_basis(x: Tensor, basis: Tensor) -> Tensor:
    """Do one subspace iteration towards the leading principal directions of x.

    Args:
        x: `[layers, tokens, width]`.
        basis: `[layers, width, rank]`, from the last call.
    """
    x = x - x.mean(-2, keepdim=True)
    return torch.linalg.qr(x.mT @ (x @ basis)).Q


def energy_gain(operator: Tensor) -> Tensor:
    """Return ‖A‖_F² / r, the mean square gain of a whitened state, `[layers]`."""
    return operator.square().sum((-2, -1)) / operator.shape[-1]


def excess_energy(operator: Tensor, *, upper: float = 1.05) -> Tensor:
    """Return relu(‖A‖_F²/r − τ²), `[layers]`; it is zero for layers that amplify no more than τ."""
    return F.relu(energy_gain(operator) - upper**2)


def shaping_loss(
    moduli: Tensor,
    *,
    target: float,
    beta: float = 1.0,
    temperature: float = 20.0,
    upper: float = 1.05,
    lower: float = 0.90,
) -> Tensor:
    """Return the published penalty on the eigenvalues' moduli `[layers, rank]`, one per layer.

    The penalty is Σ_j σ(T(a_j − τ_u)) softplus(a_j − τ_u)² + β (m − γ)², where m is the soft share
    of moduli between τ_l and τ_u. The softplus has no temperature, as published: at a = τ_u a mode
    still costs 0.24. β is not published; rksp uses 1.
    """
    over = moduli - upper
    unstable = (torch.sigmoid(temperature * over) * F.softplus(over).square()).sum(-1)
    inside = torch.sigmoid(temperature * (moduli - lower)) * torch.sigmoid(-temperature * over)
    return unstable + beta * (inside.mean(-1) - target).square()


def eigenvalue_moduli(operator: Tensor) -> tuple[Tensor, Tensor]:
    """Return |λ| of each layer's operator, with a bounded gradient.

    It is computed in float64 on the CPU, where the solver is. |λ| is √(re² + im² + 1e-12), so that
    a zero eigenvalue has a gradient. The gradient is G = V⁻ᴴ diag(g) Vᴴ (Magnus, 1985), bounded to
    ‖G‖_F ≤ 100 ‖g‖. It is zero for a layer whose eigenvectors have a condition number above 1e6,
    because near a defective operator it is noise.

    Args:
        operator: `[layers, rank, rank]`, finite.

    Returns:
        Moduli `[layers, rank]`, and a bool `[layers]` that says whether the gradient can be used.
    """
    return _Moduli.apply(operator)


class _Moduli(torch.autograd.Function):
    """The moduli of the eigenvalues and their bounded gradient; see `eigenvalue_moduli`."""

    @staticmethod
    def forward(ctx, operator: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the moduli and save the decomposition."""
        dense = operator.detach().to("cpu", torch.float64)
        finite = dense.isfinite().all(-1).all(-1)
        dense = torch.where(finite[:, None, None], dense, torch.zeros_like(dense))
        values, vectors = torch.linalg.eig(dense)
        moduli = (values.real**2 + values.imag**2 + 1e-12).sqrt()
        singular = torch.linalg.svdvals(vectors)
        usable = finite & (singular[:, 0] <= _WORST_CONDITION * singular[:, -1])
        ctx.save_for_backward(values, vectors, moduli, usable)
        usable = usable.to(operator.device)
        ctx.mark_non_differentiable(usable)
        return moduli.to(operator), usable

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> Tensor:
        """Compute the bounded gradient."""
        values, vectors, moduli, usable = ctx.saved_tensors
        sensitivity = grad.to("cpu", torch.float64) * values / moduli
        unit = torch.eye(vectors.shape[-1], dtype=vectors.dtype).expand_as(vectors)
        safe = torch.where(usable[:, None, None], vectors, unit)
        full = torch.linalg.solve(safe.mH, sensitivity.unsqueeze(-1) * safe.mH).real
        bound = _AMPLIFICATION * sensitivity.abs().square().sum(-1).sqrt()
        size = full.square().sum((-2, -1)).sqrt()
        factor = torch.where(usable, (bound / size.clamp(min=1e-300)).clamp(max=1.0), 0.0)
        return (full * factor[:, None, None]).to(grad)
