"""Which family a configuration's `model_type` belongs to, and what kind of model that is."""

from __future__ import annotations

# family: (kind, other model types that count as it)
_FAMILIES: dict[str, tuple[str, str]] = {
    "llama": ("decoder", "llama4 llama4_text smollm3"),
    "qwen2": ("decoder", "qwen2_moe qwen2_vl qwen2_5_vl"),
    "qwen3": ("decoder", "qwen3_moe qwen3_vl qwen3_vl_text"),
    "qwen3.5-hybrid": ("decoder", "qwen3_5 qwen3_5_moe qwen3_5_text qwen3_next"),
    "gemma": ("decoder", "gemma2 gemma3 gemma3_text gemma4 gemma4_text"),
    "mistral": ("decoder", "mixtral ministral"),
    "phi": ("decoder", "phi3 phimoe"),
    "olmo2": ("decoder", "olmo3"),
    "gpt2": ("decoder", "gpt_neo"),
    "deepseek_v3": ("decoder", "deepseek_v2 kimi_k2 kimi_k25"),
    "nemotron_h": ("decoder", ""),
    "gpt_oss": ("decoder", ""),
    "apertus": ("decoder", ""),
    "opt": ("decoder", ""),
    "bloom": ("decoder", ""),
    "bert": ("encoder", ""),
    "distilbert": ("encoder", ""),
    "roberta": ("encoder", "xlm-roberta xlm-roberta-xl camembert roberta-prelayernorm"),
    "deberta": ("encoder", "deberta-v2"),
    "albert": ("encoder", ""),
    "electra": ("encoder", ""),
    "layoutlm": ("encoder", "layoutlmv2 layoutlmv3"),
    "bigbird": ("encoder", "big_bird"),
    "longformer": ("encoder", ""),
    "modernbert": ("encoder", ""),
    "t5": ("encoder_decoder", "mt5 umt5 longt5 switch_transformers"),
    "bart": ("encoder_decoder", "mbart"),
    "marian": ("encoder_decoder", ""),
    "pegasus": ("encoder_decoder", "bigbird_pegasus"),
    "wav2vec2": ("speech", "wav2vec2-bert wav2vec2-conformer"),
    "whisper": ("speech", ""),
    "hubert": ("speech", ""),
    "vit": ("vision", "deit"),
    "swin": ("vision", "swinv2"),
    "beit": ("vision", ""),
    "convnext": ("vision", "convnextv2"),
    "resnet": ("vision", ""),
}
_FAMILY_OF = {
    name: family for family, (_, others) in _FAMILIES.items() for name in (family, *others.split())
}


def family_of(model_type: str) -> str:
    """Return the family of a `model_type`; one that is not listed is its own."""
    return _FAMILY_OF.get(model_type, model_type)


def kind_of(family: str) -> str | None:
    """Return decoder, encoder, encoder_decoder, speech or vision; None of an unlisted family."""
    return _FAMILIES[family][0] if family in _FAMILIES else None
