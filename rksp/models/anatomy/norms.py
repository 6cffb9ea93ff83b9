"""Norms of queries and keys, found by their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a list of checks must not load torch
    from torch import nn

# `q_norm`, `query_layernorm`, `k_ln`, `qk_norm`, `ln_q`; and `kv_a_layernorm` of the latents.
_NORM = r"_?(layer_?)?(norm|ln|layernorm)s?$"
_ANY = re.compile(rf"(^|\.)((q|k|qk|kv|query|key)(_[ab])?{_NORM}|ln_[qk]$)", re.IGNORECASE)
_OF = {
    "query": re.compile(rf"^((q|qk|query){_NORM}|ln_q$)", re.IGNORECASE),
    "key": re.compile(rf"^((k|qk|key){_NORM}|ln_k$)", re.IGNORECASE),
}


def is_qk_norm(path: str) -> bool:
    """Whether a module of this path normalizes queries or keys, or the latents they come from."""
    return _ANY.search(path) is not None


def qk_norm(attention: nn.Module, which: str) -> nn.Module | None:
    """The norm of an attention layer's heads.

    Args:
        attention: The layer.
        which: `query` or `key`; some layers share one norm between them.
    """
    for name, child in attention.named_children():
        if _OF[which].match(name) and type(child).__name__ != "Identity":
            return child
    return None
