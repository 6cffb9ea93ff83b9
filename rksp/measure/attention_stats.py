"""Compute statistics of the logits and entropy of one attention call."""

from __future__ import annotations

import torch

from rksp.measure.forward_stats import AttentionStats
from rksp.models.anatomy.attention_calls import (
    AttentionCall,
    attention_entropies,
    logit_deviations,
    visible_logits,
)

_QUERIES = 128  # query positions sampled per attention layer
_SEQUENCES = 2
_COLLAPSED = 0.05  # normalized entropy below which a head attends to one key


@torch.no_grad()
def attention_stats(call: AttentionCall, *, block: int | None = None) -> AttentionStats | None:
    """Compute the statistics of a call's softmax at 128 evenly spaced queries.

    Returns:
        The statistics; None if no query sees two keys, because entropy is then undefined.
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
