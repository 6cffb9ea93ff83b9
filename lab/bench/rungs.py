"""A ladder of tiny sizes: those of some model types must agree, so each rung changes less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rksp.ground.text import words
from rksp.models.tiny import SIZES, shrunk

# The dimensions of heads and of latent attention.
_OF_HEADS = words(
    "head_dim rotary_dim q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
    "qk_head_dim index_head_dim index_n_heads index_topk o_lora_rank o_groups"
)
_KEPT_HEADS = {name: size for name, size in SIZES.items() if name not in _OF_HEADS}

# All sizes; not those of heads; as many key–value heads as heads, and eight layers; only depth and
# vocabulary; only depth.
RUNGS: tuple[Callable[[Mapping[str, Any]], dict[str, Any]], ...] = (
    shrunk,
    partial(shrunk, sizes=_KEPT_HEADS),
    partial(shrunk, sizes=_KEPT_HEADS | {"num_key_value_heads": 4, "num_kv_heads": 4}, depth=8),
    partial(shrunk, sizes={}),
    partial(shrunk, sizes={}, vocabulary=None),
)
