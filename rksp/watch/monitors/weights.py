"""Monitors of weights: their ranks, their updates, and their first singular direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import mul
from typing import ClassVar, NamedTuple

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.kernels.power_iteration import top_singular
from rksp.models.anatomy.attention_layouts import AttentionLayer
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix, at_least_float
from rksp.watch.groups import block_matrices, local, parameter_groups
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import NO_RULE, Monitor, Reading, Rule
from rksp.watch.run_state import optimizer_parts

_FALLING_RANK = Rule(direction="down", transform="log", floor=0.2, advice="backoff")
# No ratio: in 300 healthy steps of small models a matrix's rank fell to a quarter and the mean of
# the early layers to a third.
_STABLE_RANK = Rule(direction="down", transform="log", floor=0.1, advice="msign")
# Passes over the weights at a warm start. On a small model that trained at 1e-3, 8 every 100 steps
# kept σ_1 within 1.1 % at step 100 and 0.04 % at step 200; 4 within 14 % and 1.1 %.
_PASSES = 8


class StableRank(Monitor):
    """‖W‖_F² / σ_1² of every matrix of the blocks: `stable_rank` (MSign, arXiv 2602.01734).

    It falls thousands of steps before a failure, first in attention's matrices. Fused projections
    are split; of experts in one parameter the worst gives the value. σ_1 comes from block power
    iteration warm-started at the last reading. It is never overestimated, so errors are on the
    healthy side. `early_stable_rank` of the whole model is the geometric mean over attention's
    matrices in the first third of the layers.
    """

    name = "stable-rank"
    phase = Phase.UPDATE
    default_every = 100
    quantities: ClassVar = {"stable_rank": _STABLE_RANK, "early_stable_rank": _STABLE_RANK}
    source = "MSign, arXiv 2602.01734"
    find, missing = block_matrices, "no matrix of a known layout was found in the blocks"

    def bind(self, model: nn.Module) -> str | None:
        layers = find_anatomy(model).attention
        early = layers[: -(-len(layers) // 3)]
        self._early = {matrix.name for layer in early for matrix in layer.matrices()}
        return super().bind(model)

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        weights = [matrix.read() for matrix in self.found]
        state = self.past.get("vectors")
        top = top_singular(weights, state, iterations=None if state is None else _PASSES)
        self.past["vectors"] = top.state
        norms = torch.stack([weight.float().square().sum() for weight in weights])
        ranks, sigmas = (norms / top.sigma.square()).tolist(), top.sigma.tolist()
        residuals = top.residual.tolist()
        groups: dict[str, list[int]] = {}
        for index, matrix in enumerate(self.found):
            if math.isfinite(ranks[index]):  # a zero matrix has no stable rank
                groups.setdefault(_layer(matrix), []).append(index)
        readings = []
        for layer, members in groups.items():
            members.sort(key=ranks.__getitem__)
            worst = members[0]
            detail = {"sigma": sigmas[worst], "residual": residuals[worst]}
            detail |= {"full": float(min(self.found[worst].shape))}
            if len(members) > 1:
                detail |= {"median": ranks[members[len(members) // 2]], "count": len(members)}
            value = ranks[worst]
            readings.append(self.reading("stable_rank", moment.step, value, layer=layer, **detail))
        early = [r for r in readings if r.layer in self._early and r.value > 0]
        if early:
            mean = math.exp(sum(math.log(r.value) for r in early) / len(early))
            readings.append(self.reading("early_stable_rank", moment.step, mean))
        return readings


def _layer(matrix: Matrix) -> str:
    if matrix.expert is None:
        return matrix.name
    return ":".join(part for part in matrix.name.split(":") if part != str(matrix.expert))


_ALL_HEADS = 2048  # a model with more is watched at four heads a layer
_FEW_HEADS = 4


@dataclass(eq=False)
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
    quantities: ClassVar = dict.fromkeys(
        ("qk_delta2_rank", "qk_delta3_rank", "query_update_rank", "key_update_rank"), _FALLING_RANK
    )
    source = "arXiv 2606.28116"
    find = lambda model: find_anatomy(model).attention
    missing = "no attention layer of a known layout was found"

    windows: tuple[PositiveInt, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.windows = self.windows or (definite(self.every), 10 * definite(self.every))

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        due = [
            window
            for window in self.windows
            if window not in self.past or moment.step - self.past[window][0] >= window
        ]
        if not due:
            return []
        factors = [self._factors(layer) for layer in self.found]
        readings: list[Reading] = []
        for window in due:
            if window in self.past:
                start: list[tuple[Tensor, Tensor]] = self.past[window][1]
                for layer, now, then in zip(self.found, factors, start, strict=True):
                    readings += [
                        self._of_heads(f"{quantity}_{window}", moment.step, layer, ranks, size)
                        for quantity, (ranks, size) in change_ranks(*then, *now).items()
                        if bool((ranks != 0).any())
                    ]
            self.past[window] = (moment.step, factors)
        return readings

    def _factors(self, layer: AttentionLayer) -> tuple[Tensor, Tensor]:
        """Copy the watched heads' factors `[heads, head_dim, width]`, one key per query head."""
        heads = torch.arange(layer.heads)
        if len(self.found) * layer.heads > _ALL_HEADS:
            heads = heads[:: -(-layer.heads // _FEW_HEADS)]
        query = layer.query_factor()
        keys = heads // (layer.heads // layer.kv_heads)
        return query[heads.to(query.device)], layer.key_factor()[keys.to(query.device)]

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


NEAR_EPSILON = 10.0  # a coordinate this close to Adam's epsilon hardly moves


@dataclass(eq=False)
class UpdateRMS(Monitor):
    """Reads the state of an Adam-like optimizer after its step.

    Each block's value is its worst tensor's (for `epsilon_share`, that of all tensors together):

    - `rms_t` = √mean(g² / max(v̂, ε²)), the quantity of StableAdamW (Wortsman et al., 2023, arXiv
      2304.13013, algorithm 2). Above one, the second moment underestimates the gradient; loss
      spikes were seen 1 to 8 steps later. g is the gradient that the optimizer used.
    - `update_rms` = RMS(m̂ / (√v̂ + ε)), the step in units of the learning rate, before decay.
    - `epsilon_share`: share of coordinates with 0 < √v̂ < 10 ε, whose updates vanish (Wortsman et
      al., 2023b, arXiv 2309.14322); a coordinate that never had a gradient is not counted.
    - `starved_share` of the whole model: the least of its blocks' shares of the coordinates with
      √v̂ < 10 ε among those that ever had a gradient. Rare tokens starve rows of an embedding in
      healthy runs; every block starves only if ε is too large.

    Tensors of more than `samples` entries are measured on that many, evenly spread. Of sharded
    tensors each rank measures its own part.
    """

    name = "update-rms"
    phase = Phase.UPDATE
    default_every = 4
    quantities: ClassVar = {
        "rms_t": Rule(transform="log", floor=0.15, harmless=2.0, advice="zclip"),
        "update_rms": Rule(transform="log", floor=0.25, advice="zclip"),
        "epsilon_share": NO_RULE,  # it stands at 0.5 in healthy runs: advice about ε, no alarm
        "starved_share": Rule(direction=None, warn=0.5, from_start=True),
    }
    source = "StableAdamW, arXiv 2304.13013; arXiv 2309.14322"
    find, missing = parameter_groups, "no parameter is trained"

    samples: PositiveInt = 1024  # a root mean square of normal entries is then known to 2 %

    def read(self, moment: Moment) -> list[Reading]:
        """Return the quantities of every block, and `starved_share` of the model.

        Raises:
            NotCovered: The optimizer keeps no second moment.
        """
        known, step = _adam_state(moment.optimizer), moment.step
        owned = [(name, p) for name, params in self.found.items() for p in params if p in known]
        if not owned:
            return []
        measured = zip(owned, self._measure([(p, known[p]) for _, p in owned]), strict=True)
        readings, shares = [], []
        for name, block in groupby(measured, key=lambda one: one[0][0]):
            rows = [(p.numel(), *row) for (_, p), row in block]
            sizes, rms, updates, near, alive = zip(*rows, strict=True)
            for quantity, values in (("rms_t", sorted(rms)), ("update_rms", sorted(updates))):
                median = values[len(values) // 2]
                readings.append(self.reading(quantity, step, values[-1], layer=name, median=median))
            few, ever = (sum(map(mul, part, sizes)) for part in (near, alive))
            shares.append(few / max(ever, 1.0))
            readings.append(self.reading("epsilon_share", step, few / sum(sizes), layer=name))
        return [*readings, self.reading("starved_share", step, min(shares))]

    def _measure(self, tensors: Sequence[tuple[nn.Parameter, _Adam]]) -> list[list[float]]:
        """Return what is read of every tensor, in one pass over all samples.

        That is `rms_t`, `update_rms`, and the shares of coordinates near ε and of those that ever
        had a gradient.
        """
        parts = [self._sample(definite(p.grad)) for p, _ in tensors]
        sizes = torch.tensor([len(part) for part in parts])
        owner = torch.repeat_interleave(torch.arange(len(parts)), sizes).to(parts[0].device)
        g = torch.cat(parts)
        m = torch.cat([self._sample(adam.mean) for _, adam in tensors])
        v = torch.cat([self._sample(adam.square) for _, adam in tensors])
        constants = [
            (*(1 - beta**adam.steps for beta in adam.betas), adam.epsilon) for _, adam in tensors
        ]
        first, second, eps = g.new_tensor(constants)[owner].unbind(-1)
        root = (v / second).sqrt()
        ratio = (g / root.clamp(min=eps.clamp(min=1e-30))).square()
        update = (m / first / (root + eps).clamp(min=1e-30)).square()
        alive = (v > 0).to(g.dtype)
        near = alive * (root < NEAR_EPSILON * eps)
        sums = g.new_zeros(4, len(sizes))
        sums.index_add_(1, owner, torch.stack([ratio, update, near, alive]))
        means = sums / sizes.to(sums).clamp(min=1)
        rows: list[list[float]] = torch.cat([means[:2].sqrt(), means[2:]]).T.tolist()
        return rows

    def _sample(self, tensor: Tensor) -> Tensor:
        flat = local(tensor).flatten()
        stride = max(1, len(flat) // self.samples)
        width = tensor.shape[-1] if tensor.dim() else 1
        while stride > 1 and math.gcd(stride, width) > 1:
            stride += 1  # otherwise the sample would stay within a few columns
        return flat[::stride].float()


class _Adam(NamedTuple):
    mean: Tensor
    square: Tensor
    steps: float
    betas: Sequence[float]
    epsilon: float


def _adam_state(optimizer: Optimizer | None) -> dict[nn.Parameter, _Adam]:
    groups = [
        (part, group)
        for part in optimizer_parts(optimizer)
        for group in part.param_groups
        if len(group.get("betas", ())) == 2 and "eps" in group
    ]
    if not groups:
        raise NotCovered("the optimizer keeps no second moment that rksp can read")
    return {
        p: _Adam(of["exp_avg"], of["exp_avg_sq"], float(of["step"]), group["betas"], group["eps"])
        for part, group in groups
        for p in group["params"]
        if p.grad is not None and "exp_avg_sq" in (of := part.state.get(p, {}))
    }


_MOST_TOKENS = 4096  # of the first micro-batch, evenly chosen
# Passes over the weights at a warm start. On a small model that trained at 1e-3, 4 passes every 20
# steps gave a median cosine with v_1 of 0.994 at step 20 and 0.999 at step 100, and a least one of
# 0.998 at 200; 4 passes every 100 steps gave 0.946 at step 100 and 0.9997 at 200.
_ALIGNMENT_PASSES = 4
_RESIDUAL = 0.01  # up to which a direction is that of v_1
_ROUNDS = 8  # of as many passes as it takes, at most
# Rows with a norm outside these limits have no cosine: their squares overflow or underflow.
_NORM_LIMITS = (1e-15, 1e15)


def alignment(rows: Tensor, vectors: Tensor) -> Tensor:
    """Describe the cosines of rows with unit vectors.

    Args:
        rows: `[rows, width]`.
        vectors: `[k, width]`.

    Returns:
        `[7, k]`: how many cosines are positive, negative and known, their mean, standard
        deviation, and their quantiles at 5 and 95 %.
    """
    rows = at_least_float(rows)
    norms = rows.norm(dim=-1, keepdim=True)
    valid = (norms >= _NORM_LIMITS[0]) & (norms <= _NORM_LIMITS[1])
    cosines = (rows @ vectors.mT.to(rows)) / norms
    cosines = torch.where(valid, cosines.clamp(-1.0, 1.0), float("nan"))
    mean = cosines.nanmean(0)
    std = (cosines - mean).square().nanmean(0).sqrt()
    ends = torch.nanquantile(cosines, torch.tensor([0.05, 0.95]).to(cosines), dim=0)
    counts = [(cosines > 0).sum(0), (cosines < 0).sum(0), cosines.isfinite().sum(0)]
    return torch.stack([*counts, mean, std, *ends])


class SpectralAlignment(Monitor):
    """Majority sign of cos(x_t, v_1) over tokens: `sign_majority` (arXiv 2510.04202).

    x_t is the input of a matrix, v_1 its first singular vector on that side. The value is one half
    if signs are balanced, and 1 if all inputs lie on one side, the loss of sign diversity that
    precedes failures. The first position is left out, because inputs gather there, and so are
    experts. The detail gives `mean` (its sign is consistent between readings), `std`, `p5` and
    `p95` of the cosines, `gap` = σ_2/σ_1 (near 1 the direction means little) and the `residual` of
    v_1, which is iterated on while it is above 0.01, for up to 32 passes. Padding tokens count
    like others.

    Differences from ports: cosines are taken on the input side, where they have the same sign as on
    the output side; and all tokens are taken together instead of sequence by sequence.
    """

    name = "spectral-alignment"
    default_every = 40
    quantities: ClassVar = {"sign_majority": Rule(floor=0.03, harmless=0.85, advice="qk_clip")}
    source = "arXiv 2510.04202"

    def bind(self, model: nn.Module) -> str | None:
        modules = dict(model.named_modules())
        self._groups: dict[str, list[Matrix]] = {}
        for matrix in block_matrices(model):
            path = matrix.name.partition(":")[0]
            if matrix.expert is None and path in modules:
                self._groups.setdefault(path, []).append(matrix)
        super().bind(model)
        return None if self._groups else StableRank.missing

    @torch.no_grad()
    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        matrices = [matrix for group in self._groups.values() for matrix in group]
        weights = [matrix.read() for matrix in matrices]
        state = self.past.get("vectors")
        top = top_singular(weights, state, iterations=None if state is None else _ALIGNMENT_PASSES)
        for _ in range(_ROUNDS):
            if not bool((top.residual > _RESIDUAL).any()):  # NaN is not
                break
            top = top_singular(weights, top.state, iterations=_ALIGNMENT_PASSES)
        self.past["vectors"] = top.state
        names = [matrix.name for matrix in matrices]
        self._residual = dict(zip(names, top.residual.tolist(), strict=True))
        self._gap = dict(zip(names, top.gap.tolist(), strict=True))
        triplets = zip(names, top.v, top.is_finite.tolist(), strict=True)
        vectors = {name: v for name, v, is_finite in triplets if is_finite}
        self._armed, handles = {}, []
        for path, group in self._groups.items():
            self._armed[path] = [m for m in group if m.name in vectors]
            if self._armed[path]:
                leading = torch.stack([vectors[m.name] for m in self._armed[path]])
                before, module = partial(self._before, path, leading), model.get_submodule(path)
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        return handles

    def read(self, moment: Moment) -> list[Reading]:
        return [
            reading
            for path, found in self.seen.items()
            for index, matrix in enumerate(self._armed[path])
            if (reading := self._of_matrix(moment.step, matrix, found, index)) is not None
        ]

    def _before(
        self, path: str, vectors: Tensor, module: nn.Module, args: object, kwargs: object
    ) -> None:
        x = first_tensor((args, kwargs))
        if x is None or path in self.seen:
            return
        x = x.detach()
        x = x[:, 1:] if x.dim() == 3 and x.shape[1] > 2 else x
        rows = x.flatten(0, -2)
        self.seen[path] = alignment(rows[:: -(-len(rows) // _MOST_TOKENS)], vectors)

    def _of_matrix(self, step: int, matrix: Matrix, found: Tensor, index: int) -> Reading | None:
        positive, negative, rows, mean, std, low, high = found[:, index].tolist()
        if rows < 2 or not positive + negative:
            return None  # rows that are zero or overflow have no cosine
        return self.reading(
            "sign_majority",
            step,
            max(positive, negative) / (positive + negative),
            layer=matrix.name,
            mean=mean,
            std=std,
            p5=low,
            p95=high,
            gap=self._gap[matrix.name],
            residual=self._residual[matrix.name],
            tokens=rows,
        )
