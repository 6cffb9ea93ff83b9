"""Define the zoo's transformer: attention, block, model, initialization."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.zoo.config import ZooConfig
from lab.zoo.feed_forward import KANLayer, MixtureOfExperts, feed_forward
from rksp.ground.model import definite


class ZooOutput(NamedTuple):
    """`logits` `[batch, tokens, vocab]` (or `[batch, classes]`), and the routers' `aux_loss`."""

    logits: Tensor
    aux_loss: Tensor | None


def _norm(config: ZooConfig) -> nn.Module:
    if config.norm in ("none", "deepnorm_no_post"):
        return nn.Identity()
    kind = nn.RMSNorm if config.norm in ("rmsnorm", "branch", "sandwich") else nn.LayerNorm
    return kind(config.hidden_size, eps=1e-5)


class Attention(nn.Module):
    """Multi-head attention through `scaled_dot_product_attention`."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.qkv = nn.Linear(width, 3 * width, bias=config.bias)
        self.inner_norm = nn.LayerNorm(width) if config.has_inner_norms else nn.Identity()
        self.out = nn.Linear(width, width, bias=config.bias)
        normed = nn.RMSNorm if config.qk_norm else nn.Identity
        self.q_norm, self.k_norm = normed(config.head_dim), normed(config.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map states `[..., tokens, width]` to `[..., tokens, width]`."""
        config = self.config
        shape = (*x.shape[:-1], config.num_attention_heads, config.head_dim)
        q, k, v = (part.view(shape).transpose(-3, -2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(
            self.q_norm(q),
            self.k_norm(k),
            v,
            is_causal=config.is_causal,
            scale=config.attention_scale,
        )
        return self.out(self.inner_norm(mixed.transpose(-3, -2).reshape(x.shape)))


class Block(nn.Module):
    """Attention and feed-forward around the residual stream, normalized by the configuration."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(config), feed_forward(config)
        inside = config.norm != "branch"
        self.norm_1, self.norm_2 = (_norm(config) if inside else nn.Identity() for _ in range(2))
        after = config.norm in ("branch", "sandwich")
        self.after_1, self.after_2 = (_norm(config) if after else nn.Identity() for _ in range(2))
        self.multiplier = config.residual_multiplier
        self.is_post = config.norm in ("post_ln", "deepnorm")
        self.is_parallel = config.parallel_blocks
        deep = config.norm in ("deepnorm", "deepnorm_no_post")
        self.alpha = (2 * config.num_hidden_layers) ** 0.25 if deep else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Map states `[..., tokens, width]` to `[..., tokens, width]`."""
        if self.is_post:
            x = self.norm_1(self.alpha * x + self._branch(self.attention(x)))
            return self.norm_2(self.alpha * x + self._branch(self.feed_forward(x)))
        if self.is_parallel:
            normed = self.norm_1(x)
            x = self.alpha * x + self._branch(self.attention(normed))
            return x + self._branch(self.feed_forward(normed))
        x = self.alpha * x + self._branch(self.after_1(self.attention(self.norm_1(x))))
        return self.alpha * x + self._branch(self.after_2(self.feed_forward(self.norm_2(x))))

    def _branch(self, x: Tensor) -> Tensor:
        return x if self.multiplier == 1.0 else self.multiplier * x


class ZooTransformer(nn.Module):
    """A transformer over tokens `[batch, tokens]` or images `[batch, channels, size, size]`.

    A causal language model predicts at every position. A classifier predicts from the last token,
    and a vision transformer from the mean over patches.
    """

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        if config.head == "vit":
            patch = config.patch_size
            self.embed: Any = nn.Conv2d(config.num_channels, width, patch, stride=patch)
            tokens = (config.image_size // patch) ** 2
        else:
            self.embed = nn.Embedding(config.vocab_size, width)
            tokens = config.max_position_embeddings
        self.positions = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        # A post-norm block already ends in a norm; a model without norms has no final norm.
        self.final_norm = nn.Identity() if self.blocks[0].is_post else _norm(config)
        outputs = config.vocab_size if config.is_causal else config.num_classes
        self.head = nn.Linear(width, outputs, bias=False)
        self._initialize()
        if config.tie_word_embeddings and config.is_causal:
            self.head.weight = self.embed.weight

    def forward(self, inputs: Tensor) -> ZooOutput:
        """Compute the logits and the routers' auxiliary loss."""
        x = self.embed(inputs)
        if self.config.head == "vit":
            x = x.flatten(2).transpose(1, 2)
        x = x + self.positions.weight[: x.shape[-2]]
        for block in self.blocks:
            x = block(x)
        x = self.final_norm(x)
        if self.config.head == "classifier":
            x = x[..., -1, :]
        elif self.config.head == "vit":
            x = x.mean(-2)
        experts = [definite(m.aux_loss) for m in self.modules() if isinstance(m, MixtureOfExperts)]
        return ZooOutput(self.head(x), torch.stack(experts).sum() if experts else None)

    @torch.no_grad()
    def _initialize(self) -> None:
        config, depth = self.config, self.config.num_hidden_layers
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.Conv2d):
                _draw(module, config)
                if (bias := getattr(module, "bias", None)) is not None:
                    bias.zero_()
            if isinstance(module, KANLayer):  # splines start near zero (Liu et al., 2024, §2.2)
                module.spline.weight.mul_(0.1)
        gains = {"deepnorm": (8 * depth) ** -0.25, "subln_gains": math.sqrt(math.log(2 * depth))}
        block: Any
        for block in self.blocks:
            if (gain := gains.get(config.norm)) is not None:
                block.attention.qkv.weight[2 * config.hidden_size :].mul_(gain)
                for matrix in (block.attention.out, *_linears(block.feed_forward)):
                    matrix.weight.mul_(gain)
            for matrix in _branch_outputs(block):
                if config.scale_residual_init:
                    matrix.weight.div_(math.sqrt(2 * depth))
                if config.zero_init_branches:
                    matrix.weight.zero_()


def _draw(module: Any, config: ZooConfig) -> None:
    if config.init_scheme == "torch" and not isinstance(module, nn.Embedding):
        return
    std = config.init_std
    if config.init_scheme == "fan_in" and not isinstance(module, nn.Embedding):
        std = module.weight[0].numel() ** -0.5
    nn.init.normal_(module.weight, std=std)


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def _branch_outputs(block: Block) -> list[nn.Linear]:
    """Return the matrices that write to the residual stream."""
    ffn: Any = block.feed_forward
    if isinstance(ffn, MixtureOfExperts):
        experts: Any = ffn.experts
        return [block.attention.out, *(expert.down for expert in experts)]
    if isinstance(ffn.down, KANLayer):
        return [block.attention.out, ffn.down.base, ffn.down.spline]
    return [block.attention.out, ffn.down]
