"""Find norms of queries and keys by their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # listing the checks must not load torch
    from torch import nn

# `q_norm`, `query_layernorm`, `k_ln`, `qk_norm`, `ln_q`; and `kv_a_layernorm` for latents.
_NORM = r"_?(layer_?)?(norm|ln|layernorm)s?$"
_ANY = re.compile(rf"(^|\.)((q|k|qk|kv|query|key)(_[ab])?{_NORM}|ln_[qk]$)", re.IGNORECASE)
_OF = {
    "query": re.compile(rf"^((q|qk|query){_NORM}|ln_q$)", re.IGNORECASE),
    "key": re.compile(rf"^((k|qk|key){_NORM}|ln_k$)", re.IGNORECASE),
}


def is_qk_norm(path: str) -> bool:
    """Tell whether a path names a norm of queries or keys, or of the latents they come from."""
    return _ANY.search(path) is not None


def qk_norm(attention: nn.Module, which: str) -> nn.Module | None:
    """Return the norm of an attention layer's queries or keys, or None.

    Args:
        attention: The layer.
        which: `query` or `key`; in some layers both share one norm.
    """
    for name, child in attention.named_children():
        if _OF[which].match(name) and type(child).__name__ != "Identity":
            return child
    return None
