"""Sixteen kinds of residual blocks in one small decoder: those of the experiment `spectrum`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.zoo.config import ZooConfig
from lab.zoo.transformer import Block, ZooOutput, ZooTransformer

_STREAMS = 2  # of hyper-connections
_EMBEDDED = 12.0  # what μP multiplies the embedding with, as MiniCPM does
_BASE_WIDTH = 16  # by which μP counts the width that divides the logits
_STATE, _TAPS = 8, 4  # of Mamba: size of a head's state, and tokens that its convolution sees


class PlainModel(nn.Module):
    """A model of the zoo behind a module that shows neither a configuration nor a class."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens `[batch, tokens]` to logits `[batch, tokens, vocab]`."""
        return self.model(tokens).logits


class _Rezero(nn.Module):
    """x + a f(x) with a learned a that starts at 0 (Bachlechner et al., 2020)."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.attention, self.feed_forward = block.attention, block.feed_forward
        self.gates = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gates[0] * self.attention(x)
        return x + self.gates[1] * self.feed_forward(x)


class _Mixer(nn.Module):
    """Tokens mix through two lower-triangular matrices, channels through an MLP (2105.01601)."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        block, length = Block(config), config.max_position_embeddings
        self.norm_1, self.norm_2 = block.norm_1, block.norm_2
        self.feed_forward = block.feed_forward
        self.first = nn.Parameter(torch.randn(length, length) / math.sqrt(length))
        self.second = nn.Parameter(torch.randn(length, length) / math.sqrt(length))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2]
        first, second = (m[:size, :size].tril() for m in (self.first, self.second))
        x = x + second @ F.gelu(first @ self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class _Mamba(nn.Module):
    """A block of Mamba-2 in its quadratic form, one branch behind a norm (2405.21060, §3)."""

    def __init__(self, config: ZooConfig) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.inner, self.heads = 2 * width, heads
        self.norm, self.gated_norm = nn.RMSNorm(width), nn.RMSNorm(self.inner)
        mixed = self.inner + 2 * _STATE
        self.into = nn.Linear(width, self.inner + mixed + heads, bias=False)
        self.taps = nn.Conv1d(mixed, mixed, _TAPS, groups=mixed, padding=_TAPS - 1)
        self.decay = nn.Parameter(torch.linspace(1, 8, heads).log())
        self.step = nn.Parameter(torch.linspace(-4.6, -2.3, heads))  # of softplus: 0.01 to 0.1
        self.skip = nn.Parameter(torch.ones(heads))
        self.out = nn.Linear(self.inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length, heads = x.shape[-2], self.heads
        gate, mixed, step = self.into(self.norm(x)).split(
            [self.inner, self.inner + 2 * _STATE, heads], dim=-1
        )
        mixed = F.silu(self.taps(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
        values, keys, queries = mixed.split([self.inner, _STATE, _STATE], dim=-1)
        step = F.softplus(step + self.step)  # [batch, tokens, heads]
        past = (-self.decay.exp() * step).cumsum(1).transpose(1, 2)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        kept = (past[..., :, None] - past[..., None, :]).masked_fill(hidden, -torch.inf).exp()
        values = values.unflatten(-1, (heads, -1)).transpose(1, 2)
        seen = (queries @ keys.mT)[:, None] * kept * step.transpose(1, 2)[:, :, None, :]
        read = seen @ values + self.skip[:, None, None] * values
        return x + self.out(self.gated_norm(read.transpose(1, 2).flatten(2) * F.silu(gate)))


class _Hyper(nn.Module):
    """Branches read a mix of parallel streams and write to all of them (2409.19606, static)."""

    def __init__(self, block: Block, index: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList([block.attention, block.feed_forward])
        self.norms = nn.ModuleList([block.norm_1, block.norm_2])
        reads = F.one_hot(torch.tensor([2 * index, 2 * index + 1]) % _STREAMS, _STREAMS).float()
        self.reads, self.writes = nn.Parameter(reads), nn.Parameter(torch.ones(2, _STREAMS))
        self.mixes = nn.Parameter(torch.eye(_STREAMS).repeat(2, 1, 1))

    def forward(self, streams: Tensor) -> Tensor:
        """Map streams `[batch, tokens, streams, width]` to the same shape."""
        for i, (branch, norm) in enumerate(zip(self.branches, self.norms, strict=True)):
            added = branch(norm(self.reads[i] @ streams))
            streams = self.mixes[i] @ streams + self.writes[i][:, None] * added.unsqueeze(-2)
        return streams


class _HyperModel(ZooTransformer):
    def forward(self, inputs: Tensor) -> ZooOutput:
        x = self.embed(inputs) + self.positions.weight[: inputs.shape[-1]]
        streams = x.unsqueeze(-2).repeat(1, 1, _STREAMS, 1)
        for block in self.blocks:
            streams = block(streams)
        return ZooOutput(self.head(self.final_norm(streams.sum(-2))), None)


class _MupModel(ZooTransformer):
    def forward(self, inputs: Tensor) -> ZooOutput:
        x = _EMBEDDED * (self.embed(inputs) + self.positions.weight[: inputs.shape[-1]])
        for block in self.blocks:
            x = block(x)
        scale = _BASE_WIDTH / self.config.hidden_size
        return ZooOutput(scale * self.head(self.final_norm(x)), None)


def _zoo(**switches: Any) -> Callable[[ZooConfig], ZooTransformer]:
    return lambda config: ZooTransformer(_with(config, **switches))


def _with(config: ZooConfig, **switches: Any) -> ZooConfig:
    return ZooConfig(**config.model_dump() | switches)


def _rezero(config: ZooConfig) -> ZooTransformer:
    model = ZooTransformer(_with(config, norm="none"))
    blocks: Any = model.blocks
    model.blocks = nn.ModuleList(map(_Rezero, blocks))
    return model


def _hyper(config: ZooConfig) -> ZooTransformer:
    model = _HyperModel(_with(config, norm="rmsnorm"))
    blocks: Any = model.blocks
    model.blocks = nn.ModuleList(_Hyper(block, i) for i, block in enumerate(blocks))
    return model


def _made_of(block: Callable[[ZooConfig], nn.Module]) -> Callable[[ZooConfig], ZooTransformer]:
    def make(config: ZooConfig) -> ZooTransformer:
        config = _with(config, norm="rmsnorm")
        model = ZooTransformer(config)
        model.blocks = nn.ModuleList(block(config) for _ in range(config.num_hidden_layers))
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.init_std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        return model

    return make


def _mup(config: ZooConfig) -> ZooTransformer:
    return _MupModel(
        _with(
            config,
            norm="rmsnorm",
            init_scheme="fan_in",
            residual_multiplier=1.4 / math.sqrt(config.num_hidden_layers),
            attention_scale=2 / config.head_dim,
        )
    )


def _depth_scaled(config: ZooConfig) -> ZooTransformer:
    multiplier = 1 / math.sqrt(config.num_hidden_layers)
    return ZooTransformer(_with(config, norm="pre_ln", residual_multiplier=multiplier))


KINDS: Mapping[str, Callable[[ZooConfig], ZooTransformer]] = {
    "pre_ln": _zoo(norm="pre_ln"),
    "rms": _zoo(norm="rmsnorm"),
    "post_ln": _zoo(norm="post_ln"),
    "deepnorm": _zoo(norm="deepnorm"),
    "sandwich": _zoo(norm="sandwich"),
    "branch": _zoo(norm="branch"),
    "subln": _zoo(norm="subln"),
    "none": _zoo(norm="none"),
    "parallel": _zoo(norm="pre_ln", parallel_blocks=True),
    "rezero": _rezero,
    "zero_init": _zoo(norm="rmsnorm", zero_init_branches=True),
    "mup": _mup,
    "depth_scaled": _depth_scaled,
    "hyper": _hyper,
    "mamba": _made_of(_Mamba),
    "mixer": _made_of(_Mixer),
}


def build_kind(kind: str, config: ZooConfig, *, seed: int) -> PlainModel:
    """Build a freshly initialized model of a kind, behind a plain module, in training mode.

    Args:
        kind: A key of `KINDS`.
        config: Its size and initialization; the kind sets how it normalizes.
        seed: Of the initialization; the state of the global generator is unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return PlainModel(KINDS[kind](config)).train()
