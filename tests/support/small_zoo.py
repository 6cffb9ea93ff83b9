"""Zoo members at the smallest size that still has heads, depth and an output of its own."""

from __future__ import annotations

from torch import nn

from rksp.models.zoo import build_member

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "init_std": 0.1,
    "tie_word_embeddings": False,
}


def small_member(family: str = "zoo_pre_ln", **more: object) -> nn.Module:
    return build_member(family, SHAPE | more, seed=0)
