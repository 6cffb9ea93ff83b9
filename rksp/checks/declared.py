"""The size of a model that its configuration declares, before the model is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

# Families whose feed-forward layers have two matrices; the others are gated and have three.
_TWO_MATRICES = frozenset(
    [
        "albert",
        "bart",
        "bert",
        "biogpt",
        "bigbird",
        "bloom",
        "codegen",
        "deberta",
        "deberta-v2",
        "deit",
        "distilbert",
        "electra",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "marian",
        "mbart",
        "m2m_100",
        "mpt",
        "nemotron",
        "opt",
        "pegasus",
        "persimmon",
        "phi",
        "roberta",
        "starcoder2",
        "t5",
        "vit",
        "vit_mae",
        "whisper",
        "xlm-roberta",
        "xglm",
    ]
)
_QK_NORMED = frozenset(
    [
        "olmo2",
        "olmo3",
        "olmoe",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "gemma3",
        "gemma3_text",
        "gemma3n",
        "gemma3n_text",
        "gemma4",
        "chameleon",
        "cohere2",
        "glm4_moe",
        "hunyuan_v1_dense",
        "minimax_m2",
        "flex_olmo",
        "apertus",
        "smollm4",
    ]
)
_WIDTH = ("hidden_size", "n_embd", "d_model", "dim")
_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_top_k", "num_experts_per_token", "moe_topk")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredShape:
    """A model's size, computed from its configuration with an error of a few per cent.

    Attributes:
        block_parameters: Parameters of the blocks: all except embedding and output layer.
        active_parameters: Parameters that one token uses; fewer than all in a mixture of experts.
        normalizes_qk: True if the family or the configuration normalizes queries and keys.
    """

    width: int
    depth: int
    parameters: float
    block_parameters: float
    active_parameters: float
    normalizes_qk: bool


class Settings:
    """Look-ups in a transformers configuration or in the mapping of a `config.json`."""

    def __init__(self, config: object) -> None:
        if isinstance(config, Mapping):
            config = json.loads(json.dumps(dict(config)), object_hook=_namespace)
        self.config = config

    def get(self, *names: str) -> object | None:
        """Return the first of these settings that the configuration or its text part has."""
        for part in (self.config, getattr(self.config, "text_config", None)):
            for name in names:
                try:
                    value = getattr(part, name, None)
                except RuntimeError:  # transformers: it differs by layer
                    continue
                if value is not None:
                    return value
        return None

    def number(self, *names: str) -> float | None:
        """Return the first of these settings if it is one number, not a list by layer."""
        value = self.get(*names)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def declares(self, name: str) -> bool:
        """Return True if a setting is there, be it one that differs by layer."""
        for part in (self.config, getattr(self.config, "text_config", None)):
            try:
                if getattr(part, name, None) is not None:
                    return True
            except RuntimeError:  # transformers: it differs by layer
                return True
        return False

    @property
    def family(self) -> str:
        """The model type without the suffix of a text part."""
        return str(self.get("model_type") or "").removesuffix("_text")

    @property
    def width(self) -> float | None:
        """Width of the residual stream."""
        return self.number(*_WIDTH)

    @property
    def depth(self) -> float | None:
        """Number of blocks."""
        return self.number(*_DEPTH)

    @property
    def inner(self) -> float | None:
        """Inner width of the dense feed-forward layers."""
        return self.number(*_INNER)

    @property
    def experts(self) -> float | None:
        """Experts that a router chooses from; None in a dense model."""
        return self.number(*_EXPERTS)

    @property
    def experts_per_token(self) -> float | None:
        """Experts that process each token; None in a dense model."""
        return self.number(*_CHOSEN)

    @property
    def positions(self) -> float | None:
        """Longest sequence that the configuration allows, in tokens."""
        return self.number(*_POSITIONS)

    @property
    def normalizes_qk(self) -> bool:
        """True if queries and keys are normalized, by the family or by a switch."""
        switch = self.get("qk_norm", "use_qk_norm", "qk_layernorm", "attention_layer_norm")
        return switch is True or self.family in _QK_NORMED

    @property
    def soft_cap(self) -> float | None:
        """Soft cap on the attention logits; None without one."""
        return self.number("attn_logit_softcapping", "attn_logit_softcap")

    def shape(self) -> DeclaredShape | None:
        """Compute the size; None where width or depth is missing."""
        width, depth = self.width, self.depth
        if not width or not depth:
            return None
        attention = self._attention(width)
        shared, expert, experts, chosen = self._feed_forward(width)
        embedding = (self.number("vocab_size") or 0) * width
        ends = embedding if self.get("tie_word_embeddings") else 2 * embedding
        dense_layers = self.number("first_k_dense_replace") or 0
        if not experts:
            blocks = active = depth * (attention + shared)
        else:
            dense = dense_layers * (attention + 3 * width * (self.inner or 4 * width))
            rest = depth - dense_layers
            blocks = dense + rest * (attention + shared + experts * expert)
            active = dense + rest * (attention + shared + chosen * expert)
        return DeclaredShape(
            width=int(width),
            depth=int(depth),
            parameters=blocks + ends,
            block_parameters=blocks,
            active_parameters=active + ends,
            normalizes_qk=self.normalizes_qk,
        )

    def _attention(self, width: float) -> float:
        heads = self.number("num_attention_heads", "n_head", "n_heads", "num_heads") or 1
        size = self.number("head_dim") or width / heads
        keys = self.number("num_key_value_heads") or heads
        if self.get("multi_query"):
            keys = 1
        rank = self.number("q_lora_rank")
        if rank:  # latent attention: the latents take the place of the full matrices
            latent = self.number("kv_lora_rank") or rank
            return width * (rank + latent) + (rank + 2 * latent) * heads * 128 + heads * 128 * width
        return 2 * width * size * (heads + keys)

    def _feed_forward(self, width: float) -> tuple[float, float, float, float]:
        """Return per layer: shared and expert parameters, number of experts, experts per token."""
        gated = self.family not in _TWO_MATRICES
        matrices = 3 if gated else 2
        inner = self.inner or 4 * width
        experts = self.experts
        if not experts:
            return matrices * width * inner, 0.0, 0.0, 0.0
        expert_width = self.number("moe_intermediate_size", "expert_ffn_hidden_size") or inner
        shared = self.number("shared_expert_intermediate_size") or expert_width * (
            self.number("n_shared_experts") or 0
        )
        chosen = self.experts_per_token or 1
        return 3 * width * shared, 3 * width * expert_width, experts, chosen


def _namespace(fields: dict[str, object]) -> SimpleNamespace:
    return SimpleNamespace(**fields)
