"""Models that trainers call by names of their own, in the words of transformers.

`shape_of` is for runs that start from random weights: a model type and the settings to change.
`hub_id_of` is for runs that start from a folder of downloaded weights. Sources of the shapes:
torchtitan 0.3.0, torchtitan/models/*/__init__.py; litgpt 0.5.13, litgpt/config.py; llm.c,
train_gpt2.cu; MaxText, MaxText/configs/models; and the models' own config.json.
"""

from __future__ import annotations

from collections.abc import Mapping

Shape = tuple[str, Mapping[str, object]]

_LLAMA3 = {"vocab_size": 128256, "rope_parameters.rope_theta": 500000.0}


def _llama(layers: int, width: int, heads: int, pairs: int, inner: int, **more: object) -> Shape:
    """Describe a Llama by its depth, width, heads, key-value heads and feed-forward width."""
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "intermediate_size": inner,
    }
    return "llama", sizes | {key.replace("__", "."): value for key, value in more.items()}


def _qwen3_moe(
    layers: int, width: int, heads: int, pairs: int, experts: int, **more: object
) -> Shape:
    _, sizes = _llama(layers, width, heads, pairs, 0, **more)
    return "qwen3_moe", {k: v for k, v in sizes.items() if k != "intermediate_size"} | {
        "head_dim": 128,
        "moe_intermediate_size": 768,
        "num_experts": experts,
        "num_experts_per_tok": 8,
    }


def _qwen3(layers: int, width: int, heads: int, inner: int, *, tied: bool) -> Shape:
    _, sizes = _llama(layers, width, heads, 8, inner)
    return "qwen3", dict(sizes) | {
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
        "rope_parameters.rope_theta": 1000000.0,
    }


def _deepseek_v3(layers: int, width: int, inner: int, experts: int, expert: int) -> Shape:
    return "deepseek_v3", {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": inner,
        "n_routed_experts": experts,
        "moe_intermediate_size": expert,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "n_group": 1,
        "topk_group": 1,
    }


def _gpt2(layers: int, width: int, heads: int, vocabulary: int = 50304) -> Shape:
    return "gpt2", {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary}


def _pythia(layers: int, width: int, heads: int) -> Shape:
    return "gpt_neox", {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": 50304,
    }


def _with(shape: Shape, **more: object) -> Shape:
    return shape[0], {**shape[1], **{key.replace("__", "."): v for key, v in more.items()}}


_SHAPES: dict[str, Shape] = {
    "llama2_7b": _llama(32, 4096, 32, 32, 11008, vocab_size=32000),
    "llama2_13b": _llama(40, 5120, 40, 40, 13824, vocab_size=32000),
    "llama2_70b": _llama(80, 8192, 64, 8, 28672, vocab_size=32000),
    "llama3_debugmodel": _llama(6, 256, 16, 16, 768, vocab_size=2048),
    "llama3_8b": _llama(32, 4096, 32, 8, 14336, **_LLAMA3),
    "llama3_70b": _llama(80, 8192, 64, 8, 28672, **_LLAMA3),
    "llama3_405b": _llama(126, 16384, 128, 8, 53248, **_LLAMA3),
    "tiny_llama_1.1b": _llama(22, 2048, 32, 4, 5632, vocab_size=32000),
    "micro_llama_300m": _llama(12, 1024, 16, 4, 5632, vocab_size=32000),
    "qwen3_debugmodel": _with(_qwen3(8, 256, 16, 3072, tied=True), vocab_size=2048),
    "qwen3_0_6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3_1_7b": _qwen3(28, 2048, 16, 6144, tied=True),
    "qwen3_4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3_8b": _qwen3(36, 4096, 32, 12288, tied=False),
    "qwen3_14b": _qwen3(40, 5120, 40, 17408, tied=False),
    "qwen3_32b": _qwen3(64, 5120, 64, 25600, tied=False),
    "qwen3_30b_a3b": _qwen3_moe(48, 2048, 32, 4, 128),
    "qwen3_moe": _qwen3_moe(8, 256, 16, 8, 64, vocab_size=2048),  # torchtitan's debugmodel_moe
    "deepseek_v3_debugmodel": _with(
        _deepseek_v3(6, 256, 1024, 8, 256), num_experts_per_tok=3, vocab_size=2048
    ),
    "deepseek_v3_16b": _with(
        _deepseek_v3(27, 2048, 10944, 64, 1408), num_experts_per_tok=6, vocab_size=102400
    ),
    "deepseek_v3_671b": ("deepseek_v3", {}),
    "gpt_oss_debugmodel": (
        "gpt_oss",
        {
            "num_hidden_layers": 4,
            "hidden_size": 256,
            "intermediate_size": 2880,
            "num_local_experts": 8,
            "vocab_size": 2048,
        },
    ),
    "gpt_oss_20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt_oss_120b": ("gpt_oss", {"num_hidden_layers": 36, "num_local_experts": 128}),
    "pythia_14m": _pythia(6, 128, 4),
    "pythia_31m": _pythia(6, 256, 8),
    "pythia_70m": _pythia(6, 512, 8),
    "pythia_160m": _pythia(12, 768, 12),
    "pythia_410m": _pythia(24, 1024, 16),
    "pythia_1b": _pythia(16, 2048, 8),
    "pythia_1.4b": _pythia(24, 2048, 16),
    "pythia_2.8b": _pythia(32, 2560, 32),
    "pythia_6.9b": _pythia(32, 4096, 32),
    "pythia_12b": _pythia(36, 5120, 40),
    "gpt3_c384": _gpt2(6, 384, 6),
    "gpt3_c768": _gpt2(12, 768, 12),
    "gpt3_c1024": _gpt2(24, 1024, 16),
    "gpt3_c1536": _gpt2(24, 1536, 16),
    "gpt3_c2048": _gpt2(24, 2048, 16),
}
_OWNERS = {
    "meta-llama": ("meta_llama", "llama"),
    "codellama": ("codellama",),
    "mistralai": ("mistral", "mixtral"),
    "google": ("gemma",),
    "microsoft": ("phi",),
    "Qwen": ("qwen",),
    "EleutherAI": ("pythia",),
    "TinyLlama": ("tinyllama",),
}


def shape_of(name: str) -> Shape | None:
    """Look up model type and settings by a trainer's model name, or by its longest known prefix."""
    plain = name.lower().replace("-", "_").replace(":", "_").replace("/", "_")
    known = [key for key in _SHAPES if plain == key or plain.startswith(f"{key}_")]
    return _SHAPES[max(known, key=len)] if known else None


def hub_id_of(folder: str) -> str | None:
    """Return the Hub id of a folder of weights that has the name of its repository."""
    parts = [part for part in folder.replace("\\", "/").split("/") if part]
    parts = [part for part in parts if part not in ("original", "tmp", "checkpoints", ".")]
    if not parts or "<" in folder:
        return None
    name = parts[-1]
    plain = name.lower().replace("-", "_")
    owner = next((owner for owner, starts in _OWNERS.items() if plain.startswith(starts)), None)
    return f"{owner}/{name}" if owner is not None else None
