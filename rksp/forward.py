"""What else one forward pass shows: losses, scales, attention, routers, aligned response."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rksp.models.blocks import first_tensor

_ROWS = 256  # token rows looked at per linear layer
_QUERIES = 128  # query positions looked at per attention layer
_SEQUENCES = 2
_COLLAPSED = 0.05  # normalized entropy of a head that looks at one key


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Scales of one block: RMS of the states entering and leaving, their relative change."""

    name: str
    rms_in: float
    rms_out: float
    update_ratio: float
    absmax: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStats:
    """One attention call, over visible keys.

    `logit_std` is over keys, averaged over queries and heads; `entropy` is H / ln(visible keys),
    averaged; `min_head_entropy` the lowest head's; `collapsed_heads` those under 0.05.
    """

    logit_std: float
    max_logit: float
    entropy: float
    min_head_entropy: float
    collapsed_heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStats:
    """One router: entropy over ln E, spread of the logits, load (max − mean) / mean, dead share."""

    name: str
    entropy: float
    logit_std: float
    max_violation: float
    dead_experts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStats:
    """Numbers of one forward pass; None where a quantity does not apply, with why.

    Attributes:
        loss: Cross-entropy in nats on the probe, with its labels; None without labels.
        uniform_loss: ln of the number of classes.
        logit_std: Standard deviation of the output logits over classes, averaged over positions.
        log_z: Mean log-partition of the output logits.
        activation_absmax, activation_name: Largest absolute module output, and whose.
        aligned_response: Geometric mean over linear layers of mean‖x‖₁ / RMS(Wx): the relative
            change of a layer's output per unit learning rate when every weight moves by the rate
            in the worst direction.
        aligned_worst: The five most reactive layers with their value.
        not_measured: Quantity → why.
    """

    loss: float | None
    uniform_loss: float | None
    logit_std: float | None
    log_z: float | None
    blocks: tuple[BlockStats, ...]
    attention: tuple[AttentionStats, ...]
    routers: tuple[RouterStats, ...]
    activation_absmax: float | None
    activation_name: str | None
    aligned_response: float | None
    aligned_worst: tuple[tuple[str, float], ...]
    not_measured: dict[str, str]


@dataclass
class ForwardWatch:
    """Collects the statistics while a forward pass runs inside `watching`."""

    attention: list[AttentionStats] = field(default_factory=list)
    routers: list[RouterStats] = field(default_factory=list)
    aligned: dict[str, float] = field(default_factory=dict)
    num_experts: int | None = None
    absmax: float = 0.0
    absmax_name: str | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[ForwardWatch]:
        """Hooks every leaf module and scaled dot-product attention; removes all of it after."""
        hooks = []
        self.num_experts = _num_experts(model)
        names = {module: name for name, module in model.named_modules()}
        for module, name in names.items():
            if not list(module.children()):
                hooks.append(module.register_forward_hook(self._leaf(name)))
        original = F.scaled_dot_product_attention

        def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
            stats = attention_stats(query, key, attn_mask, is_causal, more.get("scale"))
            self.attention.append(stats)
            return original(query, key, value, attn_mask, dropout_p, is_causal, **more)

        F.scaled_dot_product_attention = attention
        torch.nn.functional.scaled_dot_product_attention = attention
        try:
            yield self
        finally:
            F.scaled_dot_product_attention = original
            for hook in hooks:
                hook.remove()

    def _leaf(self, name: str):
        def look(module: nn.Module, args: tuple, output: object) -> None:
            out = first_tensor(output)
            if out is None or out.numel() == 0:
                return
            largest = float(out.abs().max())
            if not largest <= self.absmax:
                self.absmax, self.absmax_name = largest, name
            weight = getattr(module, "weight", None)
            x = first_tensor(args)
            if x is None or weight is None or weight.dim() != 2 or x.shape[-1] not in weight.shape:
                return
            if isinstance(module, nn.Embedding):
                return
            kind = name.rsplit(".", 1)[-1]
            if kind in ("gate", "router") and weight.shape[0] == self.num_experts:
                self.routers.append(router_stats(name, x, module))
                return
            rows, result = x.reshape(-1, x.shape[-1])[:_ROWS], out.reshape(-1, out.shape[-1])[:_ROWS]
            size = float(result.float().square().mean().sqrt())
            if size > 0:
                self.aligned[name] = float(rows.float().abs().sum(-1).mean()) / size

        return look

    def finish(
        self, blocks: list[BlockStats], logits: Tensor | None, labels: Tensor | None
    ) -> ForwardStats:
        """The statistics of the pass, with its logits `[..., classes]` and labels."""
        missing = {}
        loss = uniform = spread = log_z = None
        if logits is None:
            missing["loss"] = "the model returns no logits"
        else:
            flat = logits.reshape(-1, logits.shape[-1]).float()
            uniform = math.log(flat.shape[-1])
            spread = float(flat.std(-1).mean())
            log_z = float(flat.logsumexp(-1).mean())
            if labels is None:
                missing["loss"] = "the probe has no labels"
            elif labels.numel() != flat.shape[0]:
                missing["loss"] = "the labels do not match the logits"
            else:
                loss = float(F.cross_entropy(flat, labels.flatten(), ignore_index=-100))
        if not self.attention:
            missing["attention"] = "no call of scaled_dot_product_attention was seen"
        if not self.routers:
            missing["routers"] = "the model has no router that is a linear layer"
        values = [v for v in self.aligned.values() if v > 0 and math.isfinite(v)]
        worst = sorted(self.aligned.items(), key=lambda item: (-item[1], item[0]))[:5]
        return ForwardStats(
            loss=loss,
            uniform_loss=uniform,
            logit_std=spread,
            log_z=log_z,
            blocks=tuple(blocks),
            attention=tuple(self.attention),
            routers=tuple(self.routers),
            activation_absmax=self.absmax if self.absmax_name else None,
            activation_name=self.absmax_name,
            aligned_response=math.exp(sum(map(math.log, values)) / len(values)) if values else None,
            aligned_worst=tuple(worst),
            not_measured=missing,
        )


@torch.no_grad()
def attention_stats(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> AttentionStats:
    """Statistics of softmax(q kᵀ scale) on the first sequences and evenly chosen queries.

    Args:
        query: `[batch, heads, queries, dim]`; key may have fewer heads (grouped queries).
    """
    q, k = query[:_SEQUENCES].float(), key[:_SEQUENCES].float()
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    length, keys = q.shape[-2], k.shape[-2]
    chosen = torch.linspace(0, length - 1, min(length, _QUERIES)).long()
    logits = q[:, :, chosen] @ k.mT * (scale if scale is not None else q.shape[-1] ** -0.5)
    visible = torch.ones_like(logits, dtype=torch.bool)
    if is_causal:
        visible = visible & (torch.arange(keys) <= chosen[:, None])
    if mask is not None:
        part = mask[:_SEQUENCES] if mask.dim() == 4 and mask.shape[0] > 1 else mask
        part = part[..., chosen, :] if part.shape[-2] == length else part
        if part.dtype == torch.bool:
            visible = visible & part
        else:
            visible = visible & (part > torch.finfo(part.dtype).min / 2)
            logits = logits + part.float().clamp(min=-1e9)
    count = visible.sum(-1)
    logits = logits.masked_fill(~visible, -torch.inf)
    p = logits.softmax(-1)
    entropy = torch.special.entr(p).sum(-1)
    usable = count > 1
    share = torch.where(usable, entropy / count.clamp(min=2).log(), torch.nan)
    per_head = share.nanmean(dim=(0, 2))
    clean = logits.masked_fill(~visible, 0.0)
    mean = clean.sum(-1, keepdim=True) / count.clamp(min=1).unsqueeze(-1)
    variance = ((clean - mean) ** 2 * visible).sum(-1) / count.clamp(min=1)
    return AttentionStats(
        logit_std=float(variance.sqrt()[usable].mean()),
        max_logit=float(clean.abs().max()),
        entropy=float(per_head.mean()),
        min_head_entropy=float(per_head.min()),
        collapsed_heads=int((per_head < _COLLAPSED).sum()),
    )


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def _num_experts(model: nn.Module) -> int | None:
    """Number of routed experts by the configuration, under any of its usual names."""
    config = getattr(model, "config", None)
    if getattr(config, "feed_forward", "moe") != "moe":  # the zoo's dense members
        return None
    counts = (getattr(config, name, None) for name in _EXPERTS)
    return next((count for count in counts if isinstance(count, int) and count > 1), None)


@torch.no_grad()
def router_stats(name: str, x: Tensor, router: nn.Module) -> RouterStats:
    """Statistics of the softmax over all experts, recomputed in float32 from the router's input.

    Recomputed because routers return different things from one release to the next.
    """
    weight = router.weight.float()
    bias = getattr(router, "bias", None)
    logits = F.linear(x.reshape(-1, x.shape[-1]).float(), weight)
    if isinstance(bias, Tensor):
        logits = logits + bias.float()
    experts = logits.shape[-1]
    p = logits.softmax(-1)
    load = torch.bincount(logits.argmax(-1), minlength=experts).float() / len(logits)
    return RouterStats(
        name=name,
        entropy=float(torch.special.entr(p).sum(-1).mean()) / math.log(experts),
        logit_std=float(logits.std(-1).mean()),
        max_violation=float(load.max() * experts - 1),
        dead_experts=int((load < 0.1 / experts).sum()),
    )
