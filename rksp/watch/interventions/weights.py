"""Interventions on weights: QK-clip, QK-norm, MSign and spectral smoothing."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.kernels.newton_schulz import polar_factor
from rksp.kernels.power_iteration import COLD_ITERATIONS, top_singular
from rksp.models.anatomy.attention_calls import AttentionCall, AttentionTap, visible_logits
from rksp.models.anatomy.attention_layouts import AttentionLayer
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix, at_least_float
from rksp.watch.groups import block_matrices, world_size
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Handle, Moment
from rksp.watch.monitors.base import Alarm
from rksp.watch.run_state import optimizer_parts

_QUERIES = 512  # query positions multiplied at a time


@dataclass(eq=False)
class QKClip(Intervention):
    """Scales a head's W_q and W_k so that its largest logit of the step would have been τ.

    Source: Kimi K2 (arXiv 2507.20534), MuonClip. S is the largest scaled logit of a head over the
    step's batch on all ranks, without masked positions. If S > τ, the head's W_q and W_k and their
    biases are each multiplied by √γ, with γ = τ/S, after the optimizer's step. Rotary embeddings
    rotate queries and keys without changing the effect of a factor.

    Heads that share a key (grouped queries): the key is multiplied by √γ of the group's worst head,
    and each query by the rest of its own γ. Every head's logits then shrink by exactly its own γ.
    K2 itself has no such heads.

    The intervention covers attention through `scaled_dot_product_attention`: that of rksp's own
    zoo, and transformers' default. Layers with QK-norm are left out, because their logits do not
    depend on the size of the weights. In latent attention the parts without position are multiplied
    by √γ each, and the rotary query by γ.

    Args:
        tau: τ.
        every: Steps between two readings of the logits.
    """

    name = "qk_clip"
    tau: PositiveFloat = 100.0
    every: PositiveInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._layers: list[AttentionLayer] = []
        self._running: AttentionLayer | None = None
        self._largest: dict[str, Tensor] = {}

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        layers = find_anatomy(model).attention
        self._layers = [layer for layer in layers if not layer.has_qk_norm]
        written = getattr(getattr(model, "config", None), "_attn_implementation", "sdpa")
        if not self._layers or written != "sdpa":
            reason = "has QK-norm" if layers and not self._layers else "has no known attention"
            if self._layers:
                reason = f"uses {written!r} attention; build it with attn_implementation='sdpa'"
            raise NotCovered(f"QK-clip scales query and key weights, and this model {reason}.")

    def arm(self, moment: Moment) -> Sequence[Handle]:
        self._largest.clear()
        if moment.step % self.every:
            return ()
        handles: list[Handle] = [AttentionTap(self._look).open()]
        for layer in self._layers:
            handles.append(layer.module.register_forward_pre_hook(partial(self._enter, layer)))
            handles.append(layer.module.register_forward_hook(self._leave))
        return handles

    def _enter(self, layer: AttentionLayer, module: nn.Module, args: object) -> None:
        self._running = layer

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        self._running = None

    @torch.no_grad()
    def _look(self, call: AttentionCall) -> None:
        layer, query = self._running, definite(call.query)
        if layer is None or query.dim() != 4 or query.shape[1] != layer.heads:
            return
        positions = torch.arange(query.shape[-2], device=query.device)
        parts = (visible_logits(call, rows)[0] for rows in torch.split(positions, _QUERIES))
        found = torch.stack([part.amax((0, 2, 3)) for part in parts]).amax(0)
        before = self._largest.get(layer.path)
        self._largest[layer.path] = found if before is None else torch.maximum(before, found)

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        if not self._largest:
            return
        layers = [layer for layer in self._layers if layer.path in self._largest]
        found = torch.cat([self._largest[layer.path] for layer in layers])
        self._largest.clear()
        if world_size() > 1:
            torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        heads = int((found > self.tau).sum())
        if not heads or not bool(found.isfinite().all()):
            return
        parts = torch.split(found, [layer.heads for layer in layers])
        for layer, largest in zip(layers, parts, strict=True):
            if bool((largest > self.tau).any()):
                self._clip(layer, largest)
        self.record(
            moment,
            "scaled queries and keys of heads with large logits",
            moved_weights=True,
            heads=float(heads),
            largest=float(found.max()),
        )

    def _clip(self, layer: AttentionLayer, largest: Tensor) -> None:
        gamma = (self.tau / largest.clamp(min=self.tau)).view(layer.kv_heads, -1)
        group = gamma.amin(-1, keepdim=True)
        layer.key.scale_heads(group.sqrt().flatten())
        layer.query.scale_heads((gamma / group.sqrt()).flatten())
        if layer.query_rotary is not None:  # all heads share its key, which stays
            layer.query_rotary.scale_heads(gamma.flatten())


@dataclass(eq=False)
class QKNorm(Intervention):
    """Adds an RMS norm with a learned gain to every head's queries and keys, before positions.

    Source: Henry et al. (2020) and Dehghani et al. (2023), in the RMS form of Qwen3: the gain has
    the width of a head and is shared by a layer's heads. A scaled logit is then at most
    √width · max|gain_q| · max|gain_k|, whatever the weights are.

    The intervention changes the architecture once, when it is bound. The norms are hooks on the
    projections, and their gains are the projections' parameters `q_norm_gain` and `k_norm_gain`.
    Checkpoints contain the gains, but the plain architecture cannot load them. Bind before sharding
    or compiling.

    Args:
        epsilon: Added to the mean square.
    """

    name = "qk_norm"
    epsilon: PositiveFloat = 1e-6

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Add the norms and give their gains to the optimizer.

        Raises:
            NotCovered: The model has no known projections, has QK-norm already, or uses latent
                attention.
        """
        layers = find_anatomy(model).attention
        if not layers:
            raise NotCovered(
                "QK-norm found no query and key projections of a known layout; choose another "
                "intervention."
            )
        if any(layer.has_qk_norm for layer in layers):
            raise NotCovered("QK-norm: this model already normalizes its queries and keys.")
        if any(layer.key_down is not None for layer in layers):
            raise NotCovered(
                "QK-norm does not work with latent attention, which never forms its keys; "
                "choose qk_clip."
            )
        owners = {id(getattr(module, "weight", None)): module for module in model.modules()}
        gains = []
        for layer in layers:
            for matrix, name in ((layer.query, "q_norm_gain"), (layer.key, "k_norm_gain")):
                gains.append(self._insert(owners[id(matrix.parameter)], matrix, name))
        if optimizer is not None:  # that of the vectors, at the common rate and without decay
            part = optimizer_parts(optimizer)[-1]
            part.add_param_group({"params": gains, "weight_decay": 0.0})
            if part is not optimizer:  # the optimizer is a pair that steps as one
                optimizer.param_groups.append(part.param_groups[-1])
        moment, count = Moment(step=0, model=model), float(len(layers))
        self.record(moment, "put norms on queries and keys", layers=count)

    def _insert(self, module: nn.Module, matrix: Matrix, name: str) -> nn.Parameter:
        width = matrix.shape[0] // matrix.heads
        gain = nn.Parameter(torch.ones_like(matrix.parameter[0, :1]).repeat(width))
        module.register_parameter(name, gain)
        start, stop = matrix.start, matrix.stop

        def normalize(module: nn.Module, args: object, output: Tensor) -> Tensor:
            groups = torch.unflatten(output, -1, (matrix.groups, -1))
            heads = torch.unflatten(groups[..., start:stop].flatten(-2), -1, (matrix.heads, width))
            scale = getattr(module, name).to(output.dtype)
            normed = F.rms_norm(heads, (width,), scale, self.epsilon)
            part = torch.unflatten(normed.flatten(-2), -1, (matrix.groups, -1))
            return torch.cat([groups[..., :start], part, groups[..., stop:]], -1).flatten(-2)

        module.register_forward_hook(normalize)
        return gain


_LARGEST_SVD = 1024  # smaller side up to which a decomposition is cheap beside 20 steps
_REACHED = 1 + 1e-4  # times the threshold, so that a lowered value is not lowered again


class _OnWeights(Intervention):
    """Acts on weights on the clock, on alarms, or both; `every` steps lie between two actions."""

    every: int
    on: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._matrices: Sequence[Matrix] = ()
        self._last = -math.inf

    @abstractmethod
    def act(self, moment: Moment) -> None:
        """Change the weights."""

    def after_update(self, moment: Moment) -> None:
        if self.on != "alarm" and (moment.step + 1) % self.every == 0:
            self._last = moment.step
            self.act(moment)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        if self.on != "clock" and moment.step - self._last >= self.every:
            self._last = moment.step
            self.act(moment)


@dataclass(eq=False)
class MSign(_OnWeights):
    """Restores full stable rank: W ← ‖W‖_F · S / ‖S‖_F, S = UVᵀ of W = UΣVᵀ.

    Source: arXiv 2602.01734, after the optimizer's step, on weights and not on momenta, every 100
    steps. All singular values become ‖W‖_F/√r. With `strength` λ below one, W moves only part of
    the way to that target, to (1 − λ) W + λ · target, and is scaled back to its norm.

    Differences from the paper: where the smaller side exceeds 1,024, S comes from the Polar Express
    instead of an SVD (directions below 1e-4 of the largest stay partly suppressed); fused
    projections are split first, because a sign across Q|K|V would mix them; and it can act on
    alarms. Embeddings, heads, norms, routers, convolutions and Adam's moments are left unchanged.

    A run of a few hundred steps is over before an action every 100 steps can help it:
    `scope=all, every=20` saved more of rksp's short runs than the paper's defaults.

    Args:
        every: P; when it acts on alarms, the least number of steps between two actions.
        on: The clock, alarms, or both.
        scope: Projections of attention, matrices of feed-forward layers, or all of them.
        strength: λ.
        steps: Steps of the polar iteration of larger matrices; 8 reach rounding error at condition
            numbers up to 1e2, 10 at 1e3.
    """

    name = "msign"
    every: PositiveInt = 100
    on: Literal["clock", "alarm", "both"] = "clock"
    scope: Literal["attention", "mlp", "all"] = "attention"
    strength: Annotated[float, Field(gt=0, le=1)] = 1.0
    steps: PositiveInt = 10

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        anatomy = find_anatomy(model)
        parts = {"attention": anatomy.attention_matrices(), "mlp": anatomy.feed_forward}
        self._matrices = [m for part in parts if self.scope in (part, "all") for m in parts[part]]
        if not self._matrices:
            raise NotCovered(
                f"MSign with scope={self.scope!r} found no projection of a known layout; "
                "try scope=all or choose another intervention."
            )

    @torch.no_grad()
    def act(self, moment: Moment) -> None:
        for matrix in self._matrices:
            matrix.write(self.signed(at_least_float(matrix.read())))
        what, count = "replaced projections by their matrix sign", float(len(self._matrices))
        self.record(moment, what, moved_weights=True, matrices=count)

    def signed(self, weights: Tensor) -> Tensor:
        """Return matrices `[..., m, n]` moved towards their sign, at their own Frobenius norms."""
        largest = weights.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo().tiny)
        unit = weights / largest  # squares of extreme weights would leave the range of float32
        target = self._sign(unit)
        mixed: Tensor = torch.lerp(unit / _norm(unit), target / _norm(target), self.strength)
        return mixed / _norm(mixed) * _norm(unit) * largest

    def _sign(self, unit: Tensor) -> Tensor:
        if min(unit.shape[-2:]) > _LARGEST_SVD or not bool(unit.isfinite().all()):
            return polar_factor(unit, self.steps)
        u, sigma, vh = torch.linalg.svd(unit, full_matrices=False)
        kept = sigma > torch.finfo(unit.dtype).eps * max(unit.shape[-2:]) * sigma[..., :1]
        sign: Tensor = u * kept.unsqueeze(-2) @ vh
        return sign


def _norm(weights: Tensor) -> Tensor:
    norms: Tensor = weights.norm(dim=(-2, -1), keepdim=True)
    return norms.clamp(min=torch.finfo().tiny)


@dataclass(eq=False)
class SpectralSmoothing(_OnWeights):
    """Lowers the leading singular value of matrices in which it stands out.

    It is rksp's own, the simplest form of smoothing a singular spectrum. With τ = `ratio` times the
    root mean square of all singular values, computed once per action, every leading value above τ
    is lowered to τ, at most `rounds` of them: W ← W − (σ₁ − τ) u vᵀ. The rest of the matrix stays.
    Its Frobenius norm falls, so τ is lower the next time.

    It acts on the matrices of the blocks, with fused projections split. It needs no decomposition:
    the triplets come from a warm-started power iteration.

    Args:
        ratio: Ratio of σ₁ to the root mean square; it is 2 for square Gaussian matrices.
        every: Steps between two actions on the clock, and the least between two on alarms.
        on: `clock` or `alarm`.
        rounds: Number of leading values tested each time.
    """

    name = "spectral_smoothing"
    ratio: Annotated[float, Field(gt=1)] = 4.0
    every: PositiveInt = 100
    on: Literal["clock", "alarm"] = "clock"
    rounds: PositiveInt = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._states: dict[int, tuple[Tensor, ...]] = {}

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._matrices = block_matrices(model)
        if not self._matrices:
            raise NotCovered(
                "Spectral smoothing needs matrices in a list of blocks, and this model has none; "
                "choose another intervention."
            )

    @torch.no_grad()
    def act(self, moment: Moment) -> None:
        lowered, largest = 0, 0.0
        for index, matrix in enumerate(self._matrices):
            weight = matrix.read()
            weight = at_least_float(weight).clone()
            count, ratio = self._lower(weight, index)
            lowered, largest = lowered + count, max(largest, ratio)
            if count:
                matrix.write(weight)
        self.record(
            moment,
            "lowered leading singular values",
            moved_weights=lowered > 0,
            lowered=float(lowered),
            largest_ratio=largest,
        )

    def _lower(self, weight: Tensor, index: int) -> tuple[int, float]:
        """Lower leading values; return their number, and σ₁ over the root mean square before."""
        typical = float(weight.norm()) / math.sqrt(min(weight.shape))
        threshold, largest = self.ratio * typical, 0.0
        for number in range(self.rounds):
            state = self._states.get(index) if number == 0 else None
            found = top_singular([weight], state, iterations=COLD_ITERATIONS)
            if number == 0:
                self._states[index] = found.state
            sigma = float(found.sigma[0])
            if not bool(found.is_finite[0]) or typical == 0:
                return number, largest
            largest = max(largest, sigma / typical)
            if sigma <= threshold * _REACHED:
                return number, largest
            weight -= (sigma - threshold) * torch.outer(found.u[0], found.v[0]).to(weight)
        return self.rounds, largest
