"""QK spectral entropy: the number of directions in which a head's query–key form changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from rksp.models.anatomy.attention_layouts import AttentionLayer
from rksp.models.anatomy.parts import find_anatomy
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

_ALL_HEADS = 2048  # a model with more is watched at four heads a layer
_FEW_HEADS = 4


@dataclass(slots=True)
class _Base:
    """The factors at the start of a window."""

    step: int
    factors: list[tuple[Tensor, Tensor]]


class QKSpectralEntropy(Monitor):
    """Effective rank of the change of W_q W_kᵀ over a window, per head (arXiv 2606.28116).

    With ΔW = W(t) − W(t−δ) and the factors at the window's start,

        Δ2 = ΔW_q W_kᵀ + W_q ΔW_kᵀ (first order), Δ3 = ΔW_q ΔW_kᵀ, Δ1 = Δ2 + Δ3 (exact),

    the effective rank is exp(−Σ p ln p), p = σ² / Σ σ². It falls under a fault that pushes one
    direction. The quantities, each with its window as a suffix (`_50`), are `qk_delta2_rank`,
    `qk_delta3_rank`, and `query_update_rank` and `key_update_rank` of ΔW itself. Δ1 follows Δ2 and
    would cost as much, so it is left out. The value is the lowest head's; `normalized` is its
    logarithm over that of the largest possible rank.

    The spectra come from Gram matrices of the factors in float64, never from width × width
    matrices. Rotary position is left out (offset zero); latent attention contributes the part
    without position. A head that did not move has no rank: `unmoved` counts such heads, and a layer
    without other heads has no reading. A head whose weights are not finite makes the value NaN.

    Args:
        every: Steps between two readings.
        windows: δ in steps; by default one and ten times the cadence.
    """

    name = "qk-entropy"
    phase = Phase.UPDATE
    default_every = 50
    quantities = (
        "qk_delta2_rank",
        "qk_delta3_rank",
        "query_update_rank",
        "key_update_rank",
    )
    source = "arXiv 2606.28116"

    def __init__(
        self, *, every: PositiveInt | None = None, windows: Sequence[PositiveInt] | None = None
    ) -> None:
        super().__init__(every=every)
        self.windows = tuple(windows) if windows else (self.every, 10 * self.every)
        self._layers: tuple[AttentionLayer, ...] = ()
        self._bases: dict[int, _Base] = {}

    def bind(self, model: nn.Module) -> str | None:
        """Find the attention layers."""
        self._layers = find_anatomy(model).attention
        self.reset()
        return None if self._layers else "no attention layer of a known layout was found"

    def reset(self) -> None:
        """Forget the starts of the windows."""
        self._bases = {}

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        """Return the readings of the windows that end at this step."""
        due = [
            window
            for window in self.windows
            if window not in self._bases or moment.step - self._bases[window].step >= window
        ]
        if not due:
            return []
        factors = [self._factors(layer) for layer in self._layers]
        readings: list[Reading] = []
        for window in due:
            if window in self._bases:
                base = self._bases[window].factors
                for layer, now, then in zip(self._layers, factors, base, strict=True):
                    readings += self._layer_readings(moment.step, window, layer, now, then)
            self._bases[window] = _Base(moment.step, factors)
        return readings

    def _factors(self, layer: AttentionLayer) -> tuple[Tensor, Tensor]:
        """Copy the watched heads' factors `[heads, head_dim, width]`, one key per query head."""
        heads = torch.arange(layer.heads)
        if len(self._layers) * layer.heads > _ALL_HEADS:
            heads = heads[:: -(-layer.heads // _FEW_HEADS)]
        query = layer.query_factor()
        keys = heads // (layer.heads // layer.kv_heads)
        return query[heads.to(query.device)], layer.key_factor()[keys.to(query.device)]

    def _layer_readings(
        self,
        step: int,
        window: int,
        layer: AttentionLayer,
        now: tuple[Tensor, Tensor],
        then: tuple[Tensor, Tensor],
    ) -> list[Reading]:
        return [
            self._of_heads(f"{quantity}_{window}", step, layer, ranks, size)
            for quantity, (ranks, size) in change_ranks(*then, *now).items()
            if bool((ranks != 0).any())
        ]

    def _of_heads(
        self, quantity: str, step: int, layer: AttentionLayer, ranks: Tensor, size: int
    ) -> Reading:
        moved = ranks[ranks != 0]
        worst = float(moved.min())
        normalized = math.log(worst) / math.log(size) if size > 1 and worst == worst else worst
        return self.reading(
            quantity,
            step,
            worst,
            layer=layer.path,
            median=float(moved.median()),
            normalized=normalized if size > 1 else 1.0,
            heads=float(len(moved)),
            unmoved=float(len(ranks) - len(moved)),
            head=float(torch.where(ranks != 0, ranks, torch.inf).argmin()),
        )


def change_ranks(
    query_then: Tensor, key_then: Tensor, query_now: Tensor, key_now: Tensor
) -> dict[str, tuple[Tensor, int]]:
    """Return every term's effective rank of the change, by head, and its largest possible rank.

    Args:
        query_then: `[heads, head_dim, width]`.
        key_then: Same shape and dtype.
        query_now: Same shape and dtype.
        key_now: Same shape and dtype.

    Returns:
        Quantity → (`[heads]` float64, 0 for heads that did not move and NaN for heads that are not
        finite; largest rank).
    """
    query_step, key_step = query_now - query_then, key_now - key_then
    dim, width = query_then.shape[-2:]
    # Dividing both steps by their relative size scales the spectra and improves the conditioning.
    norms = [x.square().sum((-2, -1), keepdim=True) for x in (query_step, key_step)]
    sizes = [x.square().sum((-2, -1), keepdim=True) for x in (query_then, key_then)]
    scale = ((norms[0] + norms[1]) / (sizes[0] + sizes[1]).clamp(min=1e-30)).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    left = torch.cat([query_step / scale, query_then], dim=-2)
    first = torch.cat([key_then, key_step / scale], dim=-2)
    return {
        "qk_delta2_rank": (product_rank(left, first), min(2 * dim, width)),
        "qk_delta3_rank": (product_rank(query_step / scale, key_step / scale), min(dim, width)),
        "query_update_rank": (effective_rank(_gram(query_step)), min(dim, width)),
        "key_update_rank": (effective_rank(_gram(key_step)), min(dim, width)),
    }


def product_rank(left: Tensor, right: Tensor) -> Tensor:
    """Return the effective rank of `leftᵀ right`, `[...]` float64, both `[..., rank, width]`.

    σ² are the eigenvalues of G_l G_r, where G_l and G_r are the Gram matrices of the rows. With G_l
    = L Lᵀ they are those of Lᵀ G_r L. L is the Cholesky factor if there is one. Otherwise, as for
    rows of low rank, L is V w^½ of the eigenvectors V and the eigenvalues w of G_l, with negative
    eigenvalues set to zero.
    """
    gram, other = _gram(left), _gram(right)
    is_finite = torch.isfinite(gram).all(-1).all(-1)
    lower, failed = torch.linalg.cholesky_ex(gram)
    low = (failed != 0) & is_finite
    if bool(low.any()):
        energy, vectors = torch.linalg.eigh(gram[low])
        lower[low] = vectors * energy.clamp(min=0).sqrt().unsqueeze(-2)
    return effective_rank(lower.mT @ other @ lower)


def effective_rank(gram: Tensor) -> Tensor:
    """Return exp of the entropy of a Gram matrix's eigenvalues σ², `[...]`.

    It is 0 for a matrix of zeros and NaN for one that is not finite.
    """
    is_finite = torch.isfinite(gram).all(-1).all(-1)
    clean = torch.where(is_finite[..., None, None], gram, torch.zeros_like(gram))
    energy = torch.linalg.eigvalsh(clean).clamp(min=0)
    total = energy.sum(-1, keepdim=True)
    p = energy / torch.where(total > 0, total, 1.0)
    rank = torch.special.entr(p).sum(-1).exp()
    return torch.where(is_finite, torch.where(total[..., 0] > 0, rank, 0.0), torch.nan)


def _gram(rows: Tensor) -> Tensor:
    rows = rows.double()
    return rows @ rows.mT
