"""Attention logits and entropy of one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    attention_entropies,
    logit_deviations,
    visible_logits,
)

_QUERIES = 128  # query positions looked at per attention layer
_SEQUENCES = 2
_COLLAPSED = 0.05  # normalized entropy of a head that looks at one key


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStats:
    """One attention call on the first two sequences, over visible keys.

    Attributes:
        block: Position of the block it ran in; None outside of the blocks.
        logit_std: Standard deviation over keys, averaged over queries and heads.
        max_logit: Largest absolute logit.
        entropy: H / ln(visible keys), averaged over queries and heads; in [0, 1].
        collapsed_heads: Heads below 0.05.
    """

    logit_std: float
    max_logit: float
    entropy: float
    collapsed_heads: int
    block: int | None = None


@torch.no_grad()
def attention_stats(call: AttentionCall, *, block: int | None = None) -> AttentionStats | None:
    """Statistics of a call's softmax at 128 evenly chosen queries.

    Returns:
        None if no query sees two keys: then entropy says nothing.
    """
    call = call.kept(_SEQUENCES)
    length = call.rows.shape[-2]
    count = min(length, _QUERIES)
    rows = torch.arange(count, device=call.rows.device) * length // count
    logits, visible = visible_logits(call, rows)
    usable = visible.sum(-1) > 1
    if not bool(usable.any()):
        return None
    entropy = attention_entropies(logits, visible)
    per_head = torch.where(usable, entropy, torch.nan).nanmean(dim=(0, 2))
    return AttentionStats(
        logit_std=float(logit_deviations(logits, visible)[usable].mean()),
        max_logit=float(logits.masked_fill(~visible, 0.0).abs().max()),
        entropy=float(per_head.mean()),
        collapsed_heads=int((per_head < _COLLAPSED).sum()),
        block=block,
    )
