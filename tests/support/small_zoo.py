"""Zoo members at the smallest size that still has heads, depth and an output of its own."""

from __future__ import annotations

import torch
from torch import nn

from lab.zoo import ZooConfig, ZooTransformer, build_member

SMALL_ZOO = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 6,
}

ZOO_TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 0, 1]])

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


def zoo(**switches: object) -> ZooTransformer:
    torch.manual_seed(0)
    return ZooTransformer(ZooConfig(**switches))


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def random_zoo(seed: int = 0, **fields: object) -> ZooTransformer:
    """A float64 model whose norms and biases are random too, so that forgetting one shows."""
    generator = torch.Generator().manual_seed(seed)
    model = ZooTransformer(ZooConfig(**{**SMALL_ZOO, "init_std": 0.3, **fields})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.3 * noise + (1.0 if parameter.dim() == 1 else 0.0))
    return model
