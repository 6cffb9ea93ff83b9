"""Tiny Hugging Face and zoo models whose biases and gains differ from their neutral start."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lab.zoo import ZooConfig, ZooTransformer

TINY_GPT2 = {
    "n_embd": "32",
    "n_layer": "2",
    "n_head": "2",
    "vocab_size": "300",
    "n_positions": "64",
}

IDS = {"bos_token_id": "0", "eos_token_id": "0"}

_DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 24,
    "vocab_size": 64,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_FALCON = {key: _DECODER[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
_FALCON |= {"num_attention_heads": 4, "bias": True, "bos_token_id": 0, "eos_token_id": 0}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 32}
_GPT |= {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# Name → (model type, arguments of its configuration).
HUGGING_FACE: dict[str, tuple[str, dict[str, object]]] = {
    "gpt2": ("gpt2", _GPT),
    "llama": ("llama", _DECODER),
    "gpt_neox": ("gpt_neox", _DECODER | {"attention_dropout": 0.0, "hidden_dropout": 0.0}),
    "qwen3": ("qwen3", _DECODER),
    "phi3": ("phi3", _DECODER | {"pad_token_id": 0}),
    "deepseek_v3": ("deepseek_v3", _DECODER | _LATENT),
    "deepseek_v3_full_query": ("deepseek_v3", _DECODER | _LATENT | {"q_lora_rank": None}),
    "mixtral": ("mixtral", _DECODER | _EXPERTS),
    "qwen3_moe": ("qwen3_moe", _DECODER | _EXPERTS),
    "gpt_oss": ("gpt_oss", _DECODER | _EXPERTS),
    "qwen3_next": (
        "qwen3_next",
        _DECODER | _EXPERTS | {"num_hidden_layers": 4, "shared_expert_intermediate_size": 16},
    ),
    "olmo2": ("olmo2", _DECODER),
    "gpt_bigcode": ("gpt_bigcode", _GPT),
    "gpt_bigcode_multi_head": ("gpt_bigcode", _GPT | {"multi_query": False}),
    "falcon": ("falcon", _FALCON),
    "falcon_multi_head": ("falcon", _FALCON | {"multi_query": False}),
    "falcon_groups": ("falcon", _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "bert": ("bert", _DECODER | _NO_DROPOUT | {"pad_token_id": 0}),
    "vit": ("vit", _DECODER | _NO_DROPOUT | {"image_size": 8, "patch_size": 2}),
}
ZOO: dict[str, dict[str, object]] = {
    "zoo": {},
    "zoo_qk_norm": {"qk_norm": True, "norm": "rmsnorm"},
    "zoo_moe": {"feed_forward": "moe", "num_experts": 4},
    "zoo_vit": {"head": "vit"},
}
TOKENS = torch.arange(24).reshape(2, 12) * 7 % 61


def tiny(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **fields) -> nn.Module:
    """Build the model of a name in `HUGGING_FACE` or `ZOO`, with every parameter disturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in ZOO:
            shape = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
            model = ZooTransformer(ZooConfig(**{**shape, **ZOO[name], **fields}))
        else:
            model = _hugging_face(name, fields)
        model = model.to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, dtype=dtype))
    return model


def _hugging_face(name: str, fields: dict[str, object]) -> nn.Module:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        AutoModelForMaskedLM,
    )

    kind, arguments = HUGGING_FACE[name]
    auto = {"bert": AutoModelForMaskedLM, "vit": AutoModelForImageClassification}
    config = AutoConfig.for_model(kind, **(arguments | fields))
    attention = "eager" if name == "gpt_oss" else "sdpa"
    auto = auto.get(kind, AutoModelForCausalLM)
    # Grouped products know no float64.
    experts = {"experts_implementation": "eager"} if "num_experts_per_tok" in arguments else {}
    return auto.from_config(config, attn_implementation=attention, **experts)


def batch(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return inputs for the model of a name, as its first argument."""
    if "vit" in name:
        channels = 3 if name == "vit" else 1
        pixels = torch.randn(2, channels, 8, 8, generator=torch.Generator().manual_seed(5))
        return pixels.to(dtype)
    return TOKENS


def loss_of(output: object) -> Tensor:
    """Return a scalar that depends on every output."""
    logits = output.logits if hasattr(output, "logits") else output
    return logits.logsumexp(-1).mean() + 0.1 * logits.square().mean()


class Attended(TorchFunctionMode):
    """Records the arguments of every fused attention call: (query, key, value, arguments)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor, Tensor, dict]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
            given = dict(zip(names, args, strict=False)) | kwargs
            self.calls.append((given.pop("query"), given.pop("key"), given.pop("value"), given))
        return func(*args, **kwargs)
