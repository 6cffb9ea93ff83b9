"""QK-clip: scale query and key weights down where a head's attention logits grow too large."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.models.anatomy.attention_calls import AttentionCall, AttentionTap, visible_logits
from rksp.models.anatomy.attention_layouts import AttentionLayer
from rksp.models.anatomy.parts import find_anatomy
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record
from rksp.watch.moment import Moment

_QUERIES = 512  # query positions multiplied at a time


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

    def __init__(self, tau: float = 100.0, every: int = 1) -> None:
        super().__init__()
        if not tau > 0 or every < 1:
            raise InputError(f"QK-clip needs tau > 0 and every >= 1, got tau={tau}, every={every}.")
        self.tau, self.every = tau, every
        self._layers: list[AttentionLayer] = []
        self._running: AttentionLayer | None = None
        self._largest: dict[str, Tensor] = {}
        self._seconds = 0.0

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
            handles.append(layer.module.register_forward_pre_hook(self._enter(layer)))
            handles.append(layer.module.register_forward_hook(self._leave))
        return handles

    def _enter(self, layer: AttentionLayer):
        def hook(module: nn.Module, args: Any) -> None:
            self._running = layer

        return hook

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running = None

    def _look(self, call: AttentionCall) -> None:
        layer = self._running
        if (
            layer is None
            or definite(call.query).dim() != 4
            or definite(call.query).shape[1] != layer.heads
        ):
            return
        start = time.perf_counter()
        found = largest_logits(call)
        before = self._largest.get(layer.path)
        self._largest[layer.path] = found if before is None else torch.maximum(before, found)
        self._seconds += time.perf_counter() - start

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        """Scale the weights of the heads whose logits exceeded τ."""
        if not self._largest:
            return
        start = time.perf_counter() - self._seconds
        self._seconds = 0.0
        layers = [layer for layer in self._layers if layer.path in self._largest]
        found = torch.cat([self._largest[layer.path] for layer in layers])
        self._largest.clear()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        heads = int((found > self.tau).sum())
        if not heads or not bool(found.isfinite().all()):
            return
        for layer, largest in zip(layers, found.split([n.heads for n in layers]), strict=True):
            if bool((largest > self.tau).any()):
                self._clip(layer, largest)
        what = "scaled queries and keys of heads with large logits"
        record(
            self,
            moment,
            what,
            since=start,
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
    positions = torch.arange(definite(call.query).shape[-2], device=definite(call.query).device)
    parts = (visible_logits(call, rows)[0] for rows in positions.split(_QUERIES))
    return torch.stack([part.amax((0, 2, 3)) for part in parts]).amax(0)
