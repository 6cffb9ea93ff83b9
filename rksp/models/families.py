"""What is known of a model type and its configuration does not say: one row a type.

To add a type, write its row; a word of a row is a field of `Family`. A type without a row has a
gated feed-forward, normalizes before its branches and rotates its positions, as most do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Family:
    """The facts about one model type.

    Attributes:
        two_matrices: The feed-forward layers have two matrices; gated ones have three.
        qk_norm: Queries and keys are normalized.
        post_norm: Blocks normalize after the residual sum.
        bias_balanced: A bias, not a loss, balances the load of the experts.
        overflows_fp16: Reported to overflow in fp16, having been trained in bf16: unsloth-zoo PRs
            600 and 866, transformers #5651 and #11076, QwenLM/Qwen3 #670 and #868.
        learned_positions: Positions are looked up in a table; beyond its end is an index error.
        reserved_positions: The table's first two rows are not positions.
        relative_positions: Any distance will do.
        no_positions: Attention has no positions, whatever `rope_theta` says.
        vision: A model of images, which are fine-tuned at higher rates.
        encoder: An encoder of text, which is fine-tuned on few examples.
    """

    two_matrices: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    bias_balanced: bool = False
    overflows_fp16: bool = False
    learned_positions: bool = False
    reserved_positions: bool = False
    relative_positions: bool = False
    no_positions: bool = False
    vision: bool = False
    encoder: bool = False


_WORDS: dict[str, str] = {
    "albert": "two_matrices post_norm learned_positions encoder",
    "apertus": "qk_norm",
    "autoformer": "post_norm",
    "bart": "two_matrices post_norm learned_positions",
    "beit": "vision",
    "bert": "two_matrices post_norm learned_positions encoder",
    "bert-generation": "post_norm",
    "big_bird": "two_matrices post_norm",
    "biogpt": "two_matrices learned_positions",
    "blenderbot-small": "post_norm",
    "bloom": "two_matrices relative_positions",
    "camembert": "post_norm encoder",
    "chameleon": "qk_norm",
    "codegen": "two_matrices learned_positions",
    "cohere2": "qk_norm",
    "conditional_detr": "post_norm",
    "convbert": "post_norm",
    "convnext": "vision",
    "data2vec-text": "post_norm",
    "deberta": "two_matrices post_norm learned_positions encoder",
    "deberta-v2": "two_matrices post_norm encoder",
    "deepseek_v3": "bias_balanced",
    "deit": "two_matrices vision",
    "detr": "post_norm",
    "dinov2": "vision",
    "distilbert": "two_matrices post_norm learned_positions encoder",
    "dots1": "bias_balanced",
    "electra": "two_matrices post_norm learned_positions encoder",
    "ernie": "post_norm",
    "falcon": "two_matrices",
    "flex_olmo": "qk_norm",
    "fnet": "post_norm",
    "fsmt": "post_norm",
    "funnel": "post_norm",
    "gemma": "overflows_fp16",
    "gemma2": "overflows_fp16",
    "gemma3": "qk_norm overflows_fp16",
    "gemma3n": "qk_norm overflows_fp16",
    "gemma4": "qk_norm overflows_fp16",
    "glm4": "overflows_fp16",
    "glm4_moe": "qk_norm bias_balanced overflows_fp16",
    "gpt2": "two_matrices learned_positions",
    "gpt_bigcode": "two_matrices learned_positions",
    "gpt_neo": "two_matrices overflows_fp16 learned_positions",
    "gpt_neox": "two_matrices",
    "gptj": "two_matrices learned_positions",
    "hubert": "post_norm",
    "hunyuan_v1_dense": "qk_norm",
    "ibert": "post_norm",
    "informer": "post_norm",
    "jamba": "no_positions",
    "kimi_k2": "bias_balanced",
    "layoutlm": "post_norm",
    "layoutlmv2": "post_norm",
    "layoutlmv3": "post_norm",
    "led": "post_norm",
    "longformer": "post_norm",
    "longt5": "relative_positions",
    "luke": "post_norm",
    "m2m_100": "two_matrices",
    "marian": "two_matrices post_norm",
    "mbart": "two_matrices learned_positions",
    "minimax_m2": "qk_norm bias_balanced",
    "modernbert": "encoder",
    "mpnet": "post_norm encoder",
    "mpt": "two_matrices relative_positions",
    "mt5": "overflows_fp16 relative_positions",
    "mvp": "post_norm",
    "nemotron": "two_matrices",
    "nemotron_h": "no_positions",
    "nystromformer": "post_norm",
    "olmo2": "qk_norm",
    "olmo3": "qk_norm",
    "olmoe": "qk_norm",
    "openai-gpt": "post_norm",
    "opt": "two_matrices learned_positions",
    "pegasus": "two_matrices",
    "persimmon": "two_matrices",
    "phi": "two_matrices overflows_fp16",
    "plbart": "post_norm",
    "prophetnet": "post_norm",
    "qwen2": "overflows_fp16",
    "qwen2_moe": "overflows_fp16",
    "qwen3": "qk_norm overflows_fp16",
    "qwen3_moe": "qk_norm overflows_fp16",
    "qwen3_next": "qk_norm",
    "rembert": "post_norm",
    "roberta": "two_matrices post_norm learned_positions reserved_positions encoder",
    "roformer": "post_norm encoder",
    "smollm4": "qk_norm",
    "splinter": "post_norm",
    "squeezebert": "post_norm",
    "starcoder2": "two_matrices",
    "swin": "vision",
    "t5": "two_matrices overflows_fp16 relative_positions",
    "tapas": "post_norm",
    "time_series_transformer": "post_norm",
    "umt5": "overflows_fp16 relative_positions",
    "visual_bert": "post_norm",
    "vit": "two_matrices vision",
    "vit_mae": "two_matrices vision",
    "wav2vec2": "post_norm",
    "wavlm": "post_norm",
    "whisper": "two_matrices",
    "xglm": "two_matrices",
    "xlm": "post_norm learned_positions",
    "xlm-roberta": "two_matrices post_norm learned_positions reserved_positions encoder",
    "xlnet": "relative_positions",
}
FAMILIES: dict[str, Family] = {
    name: Family(**dict.fromkeys(words.split(), True)) for name, words in _WORDS.items()
}
_FACTS = tuple(field.name for field in fields(Family))


def family_of(names: Iterable[str]) -> Family:
    """Return what is true of any of these model types: a whole model and its text part."""
    rows = [FAMILIES[name] for name in names if name in FAMILIES]
    return Family(**{fact: any(getattr(row, fact) for row in rows) for fact in _FACTS})
