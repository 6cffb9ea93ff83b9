"""Define the switches of the zoo's transformer."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from rksp.ground.model import Strict

Norm = Literal[
    "pre_ln",
    "rmsnorm",
    "post_ln",
    "deepnorm",
    "deepnorm_no_post",
    "subln",
    "subln_gains",
    "branch",
    "sandwich",
    "none",
]
NORMS: tuple[str, ...] = get_args(Norm)


class ZooConfig(Strict):
    """The configuration of one transformer; names follow Hugging Face's configurations.

    Normalization (`norm`):
        pre_ln: x + f(LN x), LayerNorm before the head (GPT-2).
        rmsnorm: the same with RMSNorm (Zhang and Sennrich, 2019).
        post_ln: LN(x + f(x)) (Vaswani et al., 2017).
        deepnorm: LN(α x + f(x)), α = (2L)^(1/4); the value, output and feed-forward weights are
            scaled by β = (8L)^(-1/4) at initialization (Wang et al., 2022, decoder-only row).
        deepnorm_no_post: α x + f(x) without any norm. The paper does not have it, but it reproduces
            the "DeepNorm" row of arXiv 2602.22988, Table 1.
        subln: pre_ln with a second LayerNorm before each output projection (Wang et al., 2022b).
        subln_gains: subln with that paper's initialization: value, output and feed-forward weights
            are multiplied by γ = √(ln 2L) (its decoder-only row).
        branch: x + RMS(f(x)), RMSNorm before the head (OLMo 2; OLMo et al., 2024).
        sandwich: x + RMS(f(RMS x)), RMSNorm before the head (Gemma 2; Gemma Team, 2024).
        none: x + f(x).

    `init_scheme`: `normal` draws every matrix from N(0, init_std²); `fan_in` from
    N(0, 1/fan_in); `torch` keeps the uniform default of `torch.nn.Linear`.
    `scale_residual_init` divides the output projections by √(2L) (Radford et al., 2019).
    `residual_multiplier` multiplies every f. `attention_scale` None means 1/√head_dim.
    """

    hidden_size: int = Field(default=64, ge=4)
    num_hidden_layers: int = Field(default=4, ge=1)
    num_attention_heads: int = Field(default=4, ge=1)
    intermediate_ratio: float = Field(default=4.0, gt=0)
    vocab_size: int = Field(default=256, ge=2)
    max_position_embeddings: int = Field(default=64, ge=1)
    head: Literal["causal-lm", "classifier", "vit"] = "causal-lm"
    num_classes: int = Field(default=10, ge=2)
    image_size: int = 8
    patch_size: int = 2
    num_channels: int = 1

    norm: Norm = "pre_ln"
    qk_norm: bool = False
    attention_scale: float | None = None
    parallel_blocks: bool = False
    zero_init_branches: bool = False
    residual_multiplier: float = Field(default=1.0, gt=0)
    scale_residual_init: bool = False
    tie_word_embeddings: bool = False
    bias: bool = True
    activation: Literal["gelu", "swiglu"] = "gelu"
    init_std: float = Field(default=0.02, gt=0)
    init_scheme: Literal["normal", "fan_in", "torch"] = "normal"

    feed_forward: Literal["mlp", "moe", "kan"] = "mlp"
    num_experts: int = Field(default=8, ge=2)
    num_experts_per_tok: int = Field(default=2, ge=1)
    router_aux_loss_coef: float = Field(default=0.01, ge=0)
    router_z_loss_coef: float = Field(default=0.0, ge=0)
    kan_grid: int = Field(default=5, ge=1)
    kan_order: int = Field(default=3, ge=1)

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def intermediate_size(self) -> int:
        """Width of the feed-forward layer."""
        return int(self.hidden_size * self.intermediate_ratio)

    @property
    def has_inner_norms(self) -> bool:
        """Whether every output projection has a norm before it."""
        return self.norm in ("subln", "subln_gains")

    @property
    def is_causal(self) -> bool:
        """Whether tokens see only earlier tokens."""
        return self.head == "causal-lm"

    @model_validator(mode="after")
    def _parts_fit(self) -> ZooConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"num_attention_heads {self.num_attention_heads}"
            )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError("num_experts_per_tok exceeds num_experts")
        if self.head == "vit" and self.image_size % self.patch_size:
            raise ValueError("image_size is not a multiple of patch_size")
        if self.parallel_blocks and self.norm in ("post_ln", "deepnorm", "branch", "sandwich"):
            raise ValueError(f"parallel blocks have no {self.norm} form")
        return self
