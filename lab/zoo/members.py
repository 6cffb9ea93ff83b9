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


_TOKENS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
_READ = ("vocab_size", "max_position_embeddings")


def _named(shape: Shape, *same: str, **theirs: str) -> dict[str, Any]:
    """Return fields of a shape, under their names or under those of another library."""
    return {name: shape[name] for name in same} | {new: shape[old] for new, old in theirs.items()}


def _decoder(shape: Shape) -> dict[str, Any]:
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    own = _named(shape, *_SIZES, *_READ, "tie_word_embeddings", initializer_range="init_std")
    return (
        own
        | _TOKENS
        | {
            "num_key_value_heads": heads if heads % 2 else heads // 2,
            "head_dim": width // heads,
            "intermediate_size": int(width * 2.75) // 8 * 8,
            "pad_token_id": None,
        }
    )


def _gpt2(shape: Shape) -> dict[str, Any]:
    sizes = _named(
        shape,
        *("vocab_size", "tie_word_embeddings"),
        n_embd="hidden_size",
        n_layer="num_hidden_layers",
        n_head="num_attention_heads",
        n_positions="max_position_embeddings",
        initializer_range="init_std",
    )
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return sizes | dropout | {"bos_token_id": 0, "eos_token_id": 0}


def _opt(shape: Shape) -> dict[str, Any]:
    width = shape["hidden_size"]
    own = {"word_embed_proj_dim": width, "ffn_dim": 4 * width, "dropout": 0.0}
    sizes = _named(shape, *_SIZES, *_READ, "tie_word_embeddings", "init_std")
    return sizes | own | _TOKENS | {"pad_token_id": None}


def _bloom(shape: Shape) -> dict[str, Any]:
    mapped = _decoder(shape)
    own = ("num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings")
    return {name: value for name, value in mapped.items() if name not in own}


def _gptj(shape: Shape) -> dict[str, Any]:
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    return _gpt2(shape) | {"rotary_dim": width // heads // 2}


def _mamba(shape: Shape) -> dict[str, Any]:
    same = ("hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings")
    return _named(shape, *same, initializer_range="init_std") | _TOKENS | {"state_size": 8}


def _encoder(shape: Shape) -> dict[str, Any]:
    return _named(shape, *_SIZES, initializer_range="init_std") | {
        "intermediate_size": 4 * shape["hidden_size"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _bert(shape: Shape) -> dict[str, Any]:
    return _encoder(shape) | _named(shape, *_READ) | {"pad_token_id": 0}


def _roberta(shape: Shape, padding: int = 0) -> dict[str, Any]:
    # Positions are counted from the padding token's id on.
    return _bert(shape) | {
        "pad_token_id": padding,
        "max_position_embeddings": shape["max_position_embeddings"] + padding + 1,
    }


def _electra(shape: Shape) -> dict[str, Any]:
    return _bert(shape) | {"embedding_size": shape["hidden_size"]}


def _modernbert(shape: Shape) -> dict[str, Any]:
    return (
        _named(shape, *_SIZES, *_READ, initializer_range="init_std")
        | _TOKENS
        | {
            "intermediate_size": int(shape["hidden_size"] * 1.5) // 8 * 8,
            "cls_token_id": 0,
            "sep_token_id": 0,
            "reference_compile": False,
        }
    )


def _t5(shape: Shape) -> dict[str, Any]:
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    return _named(shape, "vocab_size", "tie_word_embeddings") | {
        "d_model": width,
        "d_kv": width // heads,
        "d_ff": 4 * width,
        "num_layers": max(1, shape["num_hidden_layers"] // 2),  # of each stack
        "num_heads": heads,
        "initializer_factor": shape["init_std"] / 0.02,
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 0,
        "decoder_start_token_id": 0,
    }


def _bart(shape: Shape) -> dict[str, Any]:
    stack = {
        "layers": max(1, shape["num_hidden_layers"] // 2),
        "attention_heads": shape["num_attention_heads"],
        "ffn_dim": 4 * shape["hidden_size"],
    }
    both = {f"{of}_{name}": n for name, n in stack.items() for of in ("encoder", "decoder")}
    more = {"dropout": 0.0, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    return _named(shape, *_READ, "init_std", d_model="hidden_size") | both | _TOKENS | more


def _vit(shape: Shape) -> dict[str, Any]:
    image = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    return _encoder(shape) | image


def _with(base: Callable[[Shape], dict[str, Any]], **extra: Any):
    return lambda shape: base(shape) | extra


# Decoder → arguments of its configuration; its model type is its name.
_DECODERS: dict[str, Callable[[Shape], dict[str, Any]]] = {
    **dict.fromkeys(("llama", "qwen3", "gemma", "olmo2", "gemma2", "cohere", "nemotron"), _decoder),
    **dict.fromkeys(("bloom", "falcon"), _bloom),
    "gpt2": _gpt2,
    "gptj": _gptj,
    "opt": _opt,
    "mamba": _mamba,
    "gpt_neox": _with(_decoder, attention_dropout=0.0, hidden_dropout=0.0),
    "phi": _with(_decoder, resid_pdrop=0.0, attention_dropout=0.0),
    "granite": _with(
        _decoder, residual_multiplier=0.22, embedding_multiplier=12.0, logits_scaling=8.0
    ),
    "starcoder2": _with(
        _decoder, residual_dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0
    ),
    "mixtral": _with(
        _decoder, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
    ),
    "qwen3_moe": _with(
        _decoder,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        output_router_logits=True,
    ),
}
# Family → (model type, head, arguments of its configuration).
HF_FAMILIES: dict[str, tuple[str, str, Callable[[Shape], dict[str, Any]]]] = {
    **{name: (name, "causal-lm", made) for name, made in _DECODERS.items()},
    "opt_post": ("opt", "causal-lm", _with(_opt, do_layer_norm_before=False)),
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
