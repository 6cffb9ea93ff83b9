"""The first singular triplet of a function's Jacobian, from matrix-vector products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SEED = 0x6A61636F
_BLOCK = 4
_KEPT = 8  # Ritz vectors that survive a restart
_ACCURACY = 3e-3  # of the vectors' angle, which is about the residual over 1 − (σ_2/σ_1)²
_SMALL = 1e-3  # of the mean norm of a state; smaller tokens count as this large

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Triplet:
    """The first singular triplet.

    Attributes:
        sigma: σ_1, never overestimated except by rounding.
        u: Unit vector in the shape of the output.
        v: Unit vector in the shape of the state.
        gap: σ_2 / σ_1; if it is near 1, the vectors mean little.
        residual: ‖Jᵀu − σ v‖ / σ.
        rounds: Number of rounds.
    """

    sigma: float
    u: Tensor
    v: Tensor
    gap: float
    residual: float
    rounds: int


def leading_triplet(function: Function, state: Tensor, *, rounds: int) -> Triplet:
    """Return the first singular triplet of the Jacobian of a function at a state.

    The method is block Krylov with thick restarts (Golub, Luk and Overton, 1981; Baglama and
    Reichel, 2005). Each round multiplies four new directions with J and computes the singular value
    decomposition of J on all kept directions (at most twelve). It then multiplies the four leading
    left vectors with Jᵀ and continues with the residuals Jᵀu − σv.

    Args:
        function: A function of a state that returns its shape; run without a graph.
        state: `[batch, tokens, width]` or any other shape with features last.
        rounds: The largest number of rounds.
    """
    generator = torch.Generator().manual_seed(_SEED)
    block = min(_BLOCK, state.numel())
    fresh = torch.randn(state.numel(), block, generator=generator, dtype=torch.float64).to(state)
    pull: Any = torch.func.vjp(function, state)[1]
    basis = state.new_zeros(state.numel(), 0)
    images = None
    for number in range(1, rounds + 1):
        fresh = _orthonormal(fresh, basis)
        pushed = [_pushed(function, state, column.view_as(state)) for column in fresh.T]
        new = torch.stack([image.flatten() for image in pushed], dim=-1)
        shape = pushed[0].shape
        basis = torch.cat([basis, fresh], -1)
        images = new if images is None else torch.cat([images, new], -1)
        if not bool(torch.isfinite(images).all()):
            none = float("nan")
            return Triplet(sigma=none, u=new, v=fresh, gap=none, residual=none, rounds=number)
        sigma, left, right = _ritz(basis, images)
        first = float(sigma[0])
        gap = float(sigma[1]) / first if first and len(sigma) > 1 else 0.0
        pulled = torch.stack([pull(u.view(shape))[0].flatten() for u in left[:, :block].T], dim=-1)
        leftover = pulled - right[:, :block] * sigma[:block].to(pulled)
        residual = float(leftover[:, 0].norm()) / max(first, 1e-30)
        if residual <= _ACCURACY * (1 - gap**2) or basis.shape[1] + block > len(basis):
            break
        basis = right[:, :_KEPT]
        images = left[:, :_KEPT] * sigma[:_KEPT].to(left)
        fresh = leftover
    return Triplet(
        sigma=first,
        u=left[:, 0].view(shape),
        v=right[:, 0].view_as(state),
        gap=gap,
        residual=residual,
        rounds=number,
    )


def _ritz(basis: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return singular values (descending, float64), left and right vectors of J on a basis."""
    double = images.double()
    energy, turn = torch.linalg.eigh(double.mT @ double)
    energy, turn = energy.flip(0), turn.flip(1)
    sigma = energy.clamp(min=0).sqrt()
    left = (double @ turn) / sigma.clamp(min=1e-30)
    return sigma, left.to(images), (basis.double() @ turn).to(basis)


def _orthonormal(fresh: Tensor, basis: Tensor) -> Tensor:
    """Return orthonormal columns that span `fresh` outside `basis`; two passes are enough."""
    fresh = fresh / fresh.norm(dim=0).clamp(min=1e-30)
    for _ in range(2):
        fresh = torch.linalg.qr(fresh - basis @ (basis.mT @ fresh)).Q
    return fresh


def _pushed(function: Function, state: Tensor, tangent: Tensor) -> Tensor:
    """Return J v for a unit vector, by central differences.

    No token moves by more than ε^⅓ of its own norm, which balances rounding and curvature. Norm
    layers make a block curve on the scale of a token, and a leading direction may act on one token.
    """
    sizes = state.norm(dim=-1)
    sizes = sizes.clamp(min=_SMALL * float(sizes.square().mean().sqrt()))
    reach = float((tangent.norm(dim=-1) / sizes.clamp(min=1e-30)).max())
    step = torch.finfo(state.dtype).eps ** (1 / 3) / max(reach, 1e-30)
    ahead, behind = function(state + step * tangent), function(state - step * tangent)
    return (ahead - behind) / (2 * step)
