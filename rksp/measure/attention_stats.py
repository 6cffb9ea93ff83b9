"""Attention logits and entropy, read while a forward pass runs, whichever way it attends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_QUERIES = 128  # query positions looked at per attention layer
_SEQUENCES = 2
_COLLAPSED = 0.05  # normalized entropy of a head that looks at one key
_EAGER = "eager_attention_forward"  # transformers' name for attention written out


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStats:
    """One attention call on the first two sequences, over visible keys.

    Attributes:
        block: Position of the block it ran in; None outside of the blocks.
        logit_std: Over keys, averaged over queries and heads.
        max_logit: Largest absolute logit.
        entropy: H / ln(visible keys), averaged over queries and heads; in [0, 1].
        min_head_entropy: The lowest head's.
        collapsed_heads: Heads below 0.05.
    """

    logit_std: float
    max_logit: float
    entropy: float
    min_head_entropy: float
    collapsed_heads: int
    block: int | None = None


@torch.no_grad()
def attention_stats(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    *,
    softcap: float | None = None,
    block: int | None = None,
) -> AttentionStats | None:
    """Statistics of softmax(q kᵀ scale + mask) in float32, at evenly chosen queries.

    Args:
        query: `[batch, heads, queries, dim]` or `[heads, queries, dim]`.
        key: Likewise; may have fewer heads (grouped queries).
        mask: Boolean (true is visible) or additive, broadcast to `[batch, heads, queries, keys]`.
        softcap: c of c·tanh(logits / c), where a model caps its logits.

    Returns:
        None if no query sees two keys: then entropy says nothing.
    """
    if query.dim() == 3:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
    q, k = query[:_SEQUENCES].float(), key[:_SEQUENCES].float()
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    length, keys = q.shape[-2], k.shape[-2]
    count = min(length, _QUERIES)
    chosen = torch.arange(count, device=q.device) * length // count
    logits = q[:, :, chosen] @ k.mT * (scale if scale is not None else q.shape[-1] ** -0.5)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    visible = torch.ones_like(logits, dtype=torch.bool)
    if is_causal:
        visible = visible & (torch.arange(keys, device=q.device) <= chosen[:, None])
    if mask is not None:
        part = mask[:_SEQUENCES] if mask.dim() == 4 and mask.shape[0] > 1 else mask
        part = part[..., chosen, :] if part.shape[-2] == length and length > 1 else part
        part = part[..., :keys]
        if part.dtype == torch.bool:
            visible = visible & part
        else:
            visible = visible & (part > -1e4)
            logits = logits + part.float().clamp(min=-1e4)
    seen = visible.sum(-1)
    usable = seen > 1
    if not bool(usable.any()):
        return None
    p = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    entropy = torch.special.entr(p).sum(-1) / seen.clamp(min=2).log()
    per_head = torch.where(usable, entropy, torch.nan).nanmean(dim=(0, 2))
    clean = logits.masked_fill(~visible, 0.0)
    mean = clean.sum(-1, keepdim=True) / seen.clamp(min=1).unsqueeze(-1)
    variance = ((clean - mean) ** 2 * visible).sum(-1) / seen.clamp(min=1)
    return AttentionStats(
        logit_std=float(variance.sqrt()[usable].mean()),
        max_logit=float(clean.abs().max()),
        entropy=float(per_head.mean()),
        min_head_entropy=float(per_head.min()),
        collapsed_heads=int((per_head < _COLLAPSED).sum()),
        block=block,
    )


Look = Callable[..., None]


class _FusedAttention(TorchFunctionMode):
    """Shows every call of scaled dot-product attention to `look`, from wherever it comes.

    A mode, not a patched function: it is of this thread only, undone however the pass ends, and
    sees callers that imported the function by name.
    """

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._inside(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            self._show(args, kwargs)
        return func(*args, **kwargs)

    def _show(self, args: tuple, kwargs: dict) -> None:
        given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        self.look(
            given["query"],
            given["key"],
            given.get("attn_mask"),
            given.get("is_causal", False),
            given.get("scale"),
        )

    def _inside(self, func, args: tuple, kwargs: dict):
        """nn.MultiheadAttention reaches a mode as one call, and the mode is off inside of it."""
        fused = F.scaled_dot_product_attention

        def shown(*args, **kwargs):
            self._show(args, kwargs)
            return fused(*args, **kwargs)

        F.scaled_dot_product_attention = shown
        try:
            return func(*args, **kwargs)
        finally:
            F.scaled_dot_product_attention = fused


_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


@contextmanager
def watching_attention(model: nn.Module, look: Look) -> Iterator[None]:
    """Calls `look(query, key, mask, is_causal, scale, softcap=…)` for every attention call inside.

    Fused attention is seen through a torch function mode; attention that transformers writes out
    through the function that its modeling files share the name of, exchanged while inside.
    """
    with ExitStack() as stack:
        for name in {type(module).__module__ for module in model.modules()}:
            file = sys.modules.get(name)
            original = getattr(file, _EAGER, None)
            if original is not None:
                setattr(file, _EAGER, _shown(original, look))
                stack.callback(setattr, file, _EAGER, original)
        # torch's own encoder layers have a fused path around everything, in evaluation mode.
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        stack.enter_context(_FusedAttention(look))
        yield


def _shown(original: Callable, look: Look) -> Callable:
    def eager(module, query, key, value, attention_mask=None, *args, **kwargs):
        scale = kwargs.get("scaling", args[0] if args else None)
        look(query, key, attention_mask, False, scale, softcap=kwargs.get("softcap"))
        return original(module, query, key, value, attention_mask, *args, **kwargs)

    return eager
