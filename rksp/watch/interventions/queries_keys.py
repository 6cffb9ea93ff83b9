"""Interventions on queries and keys: QK-clip and QK-norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.models.anatomy.attention_calls import AttentionCall, AttentionTap, visible_logits
from rksp.models.anatomy.attention_layouts import AttentionLayer
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.watch.groups import world_size
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment

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
        """Find the attention layers without QK-norm.

        Raises:
            NotCovered: The model has no such layer, or another attention function.
        """
        layers = find_anatomy(model).attention
        self._layers = [layer for layer in layers if not layer.has_qk_norm]
        written = getattr(getattr(model, "config", None), "_attn_implementation", "sdpa")
        if not self._layers or written != "sdpa":
            reason = "has QK-norm" if layers and not self._layers else "has no known attention"
            if self._layers:
                reason = f"uses {written!r} attention; build it with attn_implementation='sdpa'"
            raise NotCovered(f"QK-clip scales query and key weights, and this model {reason}.")

    def arm(self, moment: Moment) -> Sequence[Any]:
        """Record the largest logits of the step's attention calls."""
        self._largest.clear()
        if moment.step % self.every:
            return ()
        handles: list[Any] = [AttentionTap(self._look).open()]
        for layer in self._layers:
            handles.append(layer.module.register_forward_pre_hook(partial(self._enter, layer)))
            handles.append(layer.module.register_forward_hook(self._leave))
        return handles

    def _enter(self, layer: AttentionLayer, module: nn.Module, args: Any) -> None:
        self._running = layer

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running = None

    def _look(self, call: AttentionCall) -> None:
        layer, query = self._running, definite(call.query)
        if layer is None or query.dim() != 4 or query.shape[1] != layer.heads:
            return
        found = largest_logits(call)
        before = self._largest.get(layer.path)
        self._largest[layer.path] = found if before is None else torch.maximum(before, found)

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        """Scale the weights of the heads whose logits exceeded τ."""
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
        for layer, largest in zip(layers, found.split([n.heads for n in layers]), strict=True):
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


@torch.no_grad()
def largest_logits(call: AttentionCall) -> Tensor:
    """Return the largest visible logit of each head over batch and positions, `[heads]` float32."""
    query = definite(call.query)
    positions = torch.arange(query.shape[-2], device=query.device)
    parts = (visible_logits(call, rows)[0] for rows in positions.split(_QUERIES))
    return torch.stack([part.amax((0, 2, 3)) for part in parts]).amax(0)


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
        if optimizer is not None:
            _add(optimizer, gains)
        moment, count = Moment(step=0, model=model), float(len(layers))
        self.record(moment, "put norms on queries and keys", layers=count)

    def _insert(self, module: nn.Module, matrix: Matrix, name: str) -> nn.Parameter:
        width = matrix.shape[0] // matrix.heads
        gain = nn.Parameter(torch.ones_like(matrix.parameter[0, :1]).repeat(width))
        module.register_parameter(name, gain)
        start, stop = matrix.start, matrix.stop

        def normalize(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
            groups = output.unflatten(-1, (matrix.groups, -1))
            heads = groups[..., start:stop].flatten(-2).unflatten(-1, (matrix.heads, width))
            scale = getattr(module, name).to(output.dtype)
            normed = F.rms_norm(heads, (width,), scale, self.epsilon)
            part = normed.flatten(-2).unflatten(-1, (matrix.groups, -1))
            return torch.cat([groups[..., :start], part, groups[..., stop:]], -1).flatten(-2)

        module.register_forward_hook(normalize)
        return gain


def _add(optimizer: Optimizer, gains: list[nn.Parameter]) -> None:
    """Add the gains to the optimizer of the vectors, at the common rate and without decay."""
    part = getattr(optimizer, "parts", (optimizer,))[-1]
    part.add_param_group({"params": gains, "weight_decay": 0.0})
    if part is not optimizer:  # the optimizer is a pair that steps as one
        optimizer.param_groups.append(part.param_groups[-1])
