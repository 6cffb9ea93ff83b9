"""Build the families of the lab, the zoo's own and Hugging Face's, by one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from lab.zoo.config import ZooConfig
from lab.zoo.transformer import ZooTransformer
from rksp.ground.errors import InputError, nearest

Shape = Mapping[str, Any]

# The switches that define a zoo family; the rest of a member's configuration may vary.
ZOO_FAMILIES: dict[str, dict[str, Any]] = {
    "zoo_pre_ln": {"norm": "pre_ln"},
    "zoo_post_ln": {"norm": "post_ln"},
    "zoo_rmsnorm": {"norm": "rmsnorm"},
    "zoo_deepnorm": {"norm": "deepnorm"},
    "zoo_subln": {"norm": "subln"},
    "zoo_subln_gains": {"norm": "subln_gains"},
    "zoo_branch": {"norm": "branch"},
    "zoo_sandwich": {"norm": "sandwich"},
    "zoo_no_norm": {"norm": "none"},
    "zoo_qk_norm": {"norm": "rmsnorm", "qk_norm": True},
    "zoo_parallel": {"norm": "pre_ln", "parallel_blocks": True},
    "zoo_zero_init": {"norm": "rmsnorm", "zero_init_branches": True},
    "zoo_moe": {"norm": "pre_ln", "feed_forward": "moe"},
    "zoo_kan": {"norm": "pre_ln", "feed_forward": "kan"},
}


def _decoder(shape: Shape) -> dict[str, Any]:
    heads = shape["num_attention_heads"]
    return {
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads if heads % 2 else heads // 2,
        "head_dim": shape["hidden_size"] // heads,
        "intermediate_size": int(shape["hidden_size"] * 2.75) // 8 * 8,
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": shape["max_position_embeddings"],
        "initializer_range": shape["init_std"],
        "tie_word_embeddings": bool(shape["tie_word_embeddings"]),
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _gpt2(shape: Shape) -> dict[str, Any]:
    return {
        "n_embd": shape["hidden_size"],
        "n_layer": shape["num_hidden_layers"],
        "n_head": shape["num_attention_heads"],
        "n_positions": shape["max_position_embeddings"],
        "vocab_size": shape["vocab_size"],
        "initializer_range": shape["init_std"],
        "tie_word_embeddings": bool(shape["tie_word_embeddings"]),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _opt(shape: Shape) -> dict[str, Any]:
    return {
        "hidden_size": shape["hidden_size"],
        "word_embed_proj_dim": shape["hidden_size"],
        "num_hidden_layers": shape["num_hidden_layers"],
        "num_attention_heads": shape["num_attention_heads"],
        "ffn_dim": 4 * shape["hidden_size"],
        "max_position_embeddings": shape["max_position_embeddings"],
        "vocab_size": shape["vocab_size"],
        "init_std": shape["init_std"],
        "dropout": 0.0,
        "tie_word_embeddings": bool(shape["tie_word_embeddings"]),
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _bloom(shape: Shape) -> dict[str, Any]:
    mapped = _decoder(shape)
    own = ("num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings")
    return {name: value for name, value in mapped.items() if name not in own}


def _gptj(shape: Shape) -> dict[str, Any]:
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    return _gpt2(shape) | {"rotary_dim": width // heads // 2}


def _mamba(shape: Shape) -> dict[str, Any]:
    return {
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["num_hidden_layers"],
        "vocab_size": shape["vocab_size"],
        "initializer_range": shape["init_std"],
        "state_size": 8,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": bool(shape["tie_word_embeddings"]),
    }


def _encoder(shape: Shape) -> dict[str, Any]:
    return {
        "hidden_size": shape["hidden_size"],
        "num_hidden_layers": shape["num_hidden_layers"],
        "num_attention_heads": shape["num_attention_heads"],
        "intermediate_size": 4 * shape["hidden_size"],
        "initializer_range": shape["init_std"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _bert(shape: Shape) -> dict[str, Any]:
    return _encoder(shape) | {
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": shape["max_position_embeddings"],
        "pad_token_id": 0,
    }


def _roberta(shape: Shape, padding: int = 0) -> dict[str, Any]:
    # Positions are counted from the padding token's id on.
    return _bert(shape) | {
        "pad_token_id": padding,
        "max_position_embeddings": shape["max_position_embeddings"] + padding + 1,
    }


def _electra(shape: Shape) -> dict[str, Any]:
    return _bert(shape) | {"embedding_size": shape["hidden_size"]}


def _modernbert(shape: Shape) -> dict[str, Any]:
    width = shape["hidden_size"]
    return {
        "hidden_size": width,
        "num_hidden_layers": shape["num_hidden_layers"],
        "num_attention_heads": shape["num_attention_heads"],
        "intermediate_size": int(width * 1.5) // 8 * 8,
        "vocab_size": shape["vocab_size"],
        "max_position_embeddings": shape["max_position_embeddings"],
        "initializer_range": shape["init_std"],
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "cls_token_id": 0,
        "sep_token_id": 0,
        "reference_compile": False,
    }


def _t5(shape: Shape) -> dict[str, Any]:
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    return {
        "d_model": width,
        "d_kv": width // heads,
        "d_ff": 4 * width,
        "num_layers": max(1, shape["num_hidden_layers"] // 2),  # of each stack
        "num_heads": heads,
        "vocab_size": shape["vocab_size"],
        "initializer_factor": shape["init_std"] / 0.02,
        "tie_word_embeddings": bool(shape["tie_word_embeddings"]),
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 0,
        "decoder_start_token_id": 0,
    }


def _bart(shape: Shape) -> dict[str, Any]:
    depth, heads = max(1, shape["num_hidden_layers"] // 2), shape["num_attention_heads"]
    return {
        "d_model": shape["hidden_size"],
        "encoder_layers": depth,
        "decoder_layers": depth,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * shape["hidden_size"],
        "decoder_ffn_dim": 4 * shape["hidden_size"],
        "max_position_embeddings": shape["max_position_embeddings"],
        "vocab_size": shape["vocab_size"],
        "init_std": shape["init_std"],
        "dropout": 0.0,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    }


def _vit(shape: Shape) -> dict[str, Any]:
    return _encoder(shape) | {
        "image_size": 8,
        "patch_size": 2,
        "num_channels": 1,
        "num_labels": 10,
    }


def _with(base: Callable[[Shape], dict[str, Any]], **extra: Any):
    return lambda shape: base(shape) | extra


# Family → (model type, head, arguments of its configuration).
HF_FAMILIES: dict[str, tuple[str, str, Callable[[Shape], dict[str, Any]]]] = {
    "gpt2": ("gpt2", "causal-lm", _gpt2),
    "llama": ("llama", "causal-lm", _decoder),
    "qwen3": ("qwen3", "causal-lm", _decoder),
    "gemma": ("gemma", "causal-lm", _decoder),
    "olmo2": ("olmo2", "causal-lm", _decoder),
    "gpt_neox": (
        "gpt_neox",
        "causal-lm",
        _with(_decoder, attention_dropout=0.0, hidden_dropout=0.0),
    ),
    "phi": ("phi", "causal-lm", _with(_decoder, resid_pdrop=0.0, attention_dropout=0.0)),
    "gemma2": ("gemma2", "causal-lm", _decoder),
    "granite": (
        "granite",
        "causal-lm",
        _with(_decoder, residual_multiplier=0.22, embedding_multiplier=12.0, logits_scaling=8.0),
    ),
    "opt_post": ("opt", "causal-lm", _with(_opt, do_layer_norm_before=False)),
    "opt": ("opt", "causal-lm", _opt),
    "bloom": ("bloom", "causal-lm", _bloom),
    "gptj": ("gptj", "causal-lm", _gptj),
    "falcon": ("falcon", "causal-lm", _bloom),
    "starcoder2": (
        "starcoder2",
        "causal-lm",
        _with(_decoder, residual_dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0),
    ),
    "cohere": ("cohere", "causal-lm", _decoder),
    "nemotron": ("nemotron", "causal-lm", _decoder),
    "mixtral": (
        "mixtral",
        "causal-lm",
        _with(_decoder, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True),
    ),
    "qwen3_moe": (
        "qwen3_moe",
        "causal-lm",
        _with(
            _decoder,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            output_router_logits=True,
        ),
    ),
    "mamba": ("mamba", "causal-lm", _mamba),
    "bert": ("bert", "masked-lm", _bert),
    # Masked bytes teach a small encoder no more than their frequencies; as a classifier it learns.
    "bert_classifier": ("bert", "text-classification", _with(_bert, num_labels=4)),
    "roberta": ("roberta", "masked-lm", _with(_roberta, bos_token_id=0, eos_token_id=0)),
    "roberta_classifier": (
        "roberta",
        "text-classification",
        _with(partial(_roberta, padding=1), type_vocab_size=1, num_labels=4),
    ),
    "electra": ("electra", "masked-lm", _electra),
    "modernbert": ("modernbert", "masked-lm", _modernbert),
    "t5": ("t5", "seq2seq", _t5),
    "bart": ("bart", "seq2seq", _bart),
    "vit": ("vit", "image-classification", _vit),
    "vit_cifar10": (
        "vit",
        "image-classification",
        _with(_vit, image_size=32, patch_size=4, num_channels=3),
    ),
}

_ATTENTION = {"mamba": None} | dict.fromkeys(("gemma2", "bloom", "gptj"), "eager")
# the others use scaled_dot_product_attention

FAMILIES: tuple[str, ...] = (*ZOO_FAMILIES, *HF_FAMILIES)


def build_member(
    family: str, shape: Shape, *, seed: int, changes: Mapping[str, object] | None = None
) -> nn.Module:
    """Build a freshly initialized member of a family, in training mode, float32, on the CPU.

    Args:
        family: A name in `FAMILIES`.
        shape: Fields of `ZooConfig`; a Hugging Face family uses those that it has.
        seed: Seed of the initialization; the state of the global generator is unchanged.
        changes: Fields of a Hugging Face configuration that replace the family's.

    Returns:
        The model.

    Raises:
        InputError: The family is not known.
    """
    if family not in FAMILIES:
        raise InputError(f"No family is called {family!r}{nearest(family, FAMILIES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if (config := zoo_config(family, shape)) is not None:
            return ZooTransformer(config).train()
        return _build_hf(family, ZooConfig(**shape).model_dump(), changes or {}).train()


def zoo_config(family: str, shape: Shape) -> ZooConfig | None:
    """Return the configuration of a zoo family; None for a Hugging Face family."""
    if family not in ZOO_FAMILIES:
        return None
    return ZooConfig(**{**shape, **ZOO_FAMILIES[family]})


def _build_hf(family: str, shape: Shape, changes: Mapping[str, object]) -> nn.Module:
    # Imported here, because transformers takes seconds and the zoo's own families do not need it.
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoModelForSequenceClassification,
    )

    model_type, head, arguments = HF_FAMILIES[family]
    auto = {
        "causal-lm": AutoModelForCausalLM,
        "masked-lm": AutoModelForMaskedLM,
        "seq2seq": AutoModelForSeq2SeqLM,
        "text-classification": AutoModelForSequenceClassification,
        "image-classification": AutoModelForImageClassification,
    }[head]
    config = AutoConfig.for_model(model_type, **{**arguments(shape), **changes})
    return auto.from_config(config, attn_implementation=_ATTENTION.get(family, "sdpa"))
