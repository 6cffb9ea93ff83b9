"""What is known of a model type and its configuration does not say: one row a type.

To add a type, write its row: its kind, `of=` its lineage, and the fields of `Family` that are true
of it. A type without a row has a gated feed-forward, normalizes before its branches and rotates its
positions, as most do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

# Decoders and encoders are of text; those of images are fine-tuned at higher rates, and encoders of
# text on few examples.
KINDS = ("decoder", "encoder", "encoder_decoder", "speech", "vision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The facts about one model type.

    Attributes:
        kind: One of `KINDS`; None where nothing here depends on it.
        of: The lineage whose fine-tuning runs speak for the type; None for its own.
        two_matrices: The feed-forward layers have two matrices; gated ones have three.
        qk_norm: Queries and keys are normalized.
        post_norm: Blocks normalize after the residual sum.
        parallel: Attention and feed-forward read the same state, and both are added.
        branch_norm: A norm follows every branch, before the residual sum.
        bias_balanced: A bias, not a loss, balances the load of the experts.
        overflows_fp16: Reported to overflow in fp16, having been trained in bf16: unsloth-zoo PRs
            600 and 866, transformers #5651 and #11076, QwenLM/Qwen3 #670 and #868; BLOOM and BLOOMZ
            of 176B, whose smaller ones declare float16 and so are left alone.
        learned_positions: Positions are looked up in a table; beyond its end is an index error.
        reserved_positions: The table's first two rows are not positions.
        relative_positions: Any distance will do.
        no_positions: Attention has no positions, whatever `rope_theta` says.
        own_scales: The code draws the matrices that read the stream by a rule of its own (by width
            or `initializer_factor`), whatever `initializer_range` says.
        unscaled_attention: The code multiplies normalized queries and keys by a scale of 1.
        unit_head: The code draws an untied output layer with a deviation of `initializer_factor`.
    """

    kind: str | None = None
    of: str | None = None
    two_matrices: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    parallel: bool = False
    branch_norm: bool = False
    bias_balanced: bool = False
    overflows_fp16: bool = False
    learned_positions: bool = False
    reserved_positions: bool = False
    relative_positions: bool = False
    no_positions: bool = False
    own_scales: bool = False
    unscaled_attention: bool = False
    unit_head: bool = False


_WORDS: dict[str, str] = {
    "albert": "encoder two_matrices post_norm learned_positions",
    "apertus": "decoder qk_norm",
    "autoformer": "post_norm",
    "bart": "encoder_decoder two_matrices post_norm learned_positions",
    "beit": "vision",
    "bert": "encoder two_matrices post_norm learned_positions",
    "bert-generation": "post_norm",
    "big_bird": "encoder of=bigbird two_matrices post_norm",
    "bigbird_pegasus": "encoder_decoder of=pegasus",
    "biogpt": "two_matrices learned_positions",
    "blenderbot-small": "post_norm",
    "bloom": "decoder two_matrices overflows_fp16 relative_positions",
    "blt": "own_scales",
    "camembert": "encoder of=roberta post_norm",
    "chameleon": "qk_norm",
    "chinese_clip_vision_model": "own_scales",
    "clip": "own_scales",
    "clip_text_model": "own_scales",
    "codegen": "two_matrices learned_positions parallel",
    "cohere": "parallel",
    "cohere2": "qk_norm parallel",
    "conditional_detr": "post_norm",
    "convbert": "post_norm",
    "convnext": "vision",
    "convnextv2": "vision of=convnext",
    "data2vec-text": "post_norm",
    "deberta": "encoder two_matrices post_norm learned_positions",
    "deberta-v2": "encoder of=deberta two_matrices post_norm",
    "deepseek_v2": "decoder of=deepseek_v3",
    "deepseek_v3": "decoder bias_balanced",
    "deit": "vision of=vit two_matrices",
    "detr": "post_norm",
    "dinov2": "vision",
    "distilbert": "encoder two_matrices post_norm learned_positions",
    "dots1": "bias_balanced",
    "electra": "encoder two_matrices post_norm learned_positions",
    "ernie": "post_norm",
    "esm": "two_matrices",
    "exaone4": "branch_norm",
    "falcon": "two_matrices parallel",
    "flex_olmo": "qk_norm branch_norm",
    "fnet": "post_norm",
    "fsmt": "post_norm",
    "funnel": "post_norm own_scales",
    "gemma": "decoder overflows_fp16",
    "gemma2": "decoder of=gemma overflows_fp16 branch_norm",
    "gemma3": "decoder of=gemma qk_norm overflows_fp16 branch_norm",
    "gemma3n": "qk_norm overflows_fp16 branch_norm unscaled_attention",
    "gemma4": "decoder of=gemma qk_norm overflows_fp16 branch_norm unscaled_attention",
    "glm4": "overflows_fp16 branch_norm",
    "glm4_moe": "qk_norm bias_balanced overflows_fp16",
    "gpt2": "decoder two_matrices learned_positions",
    "gpt_bigcode": "two_matrices learned_positions",
    "gpt_neo": "decoder of=gpt2 two_matrices overflows_fp16 learned_positions",
    "gpt_neox": "two_matrices parallel",
    "gpt_oss": "decoder",
    "gptj": "two_matrices learned_positions parallel",
    "hubert": "speech post_norm",
    "hunyuan_v1_dense": "qk_norm",
    "ibert": "post_norm",
    "imagegpt": "own_scales",
    "informer": "post_norm",
    "jamba": "no_positions",
    "kimi_k2": "decoder of=deepseek_v3 bias_balanced",
    "kimi_k25": "decoder of=deepseek_v3",
    "layoutlm": "encoder post_norm",
    "layoutlmv2": "encoder of=layoutlm post_norm",
    "layoutlmv3": "encoder of=layoutlm post_norm",
    "led": "post_norm",
    "llama": "decoder",
    "llama4": "decoder of=llama",
    "longformer": "encoder post_norm",
    "longt5": "encoder_decoder of=t5 relative_positions unit_head",
    "luke": "post_norm",
    "m2m_100": "two_matrices",
    "marian": "encoder_decoder two_matrices post_norm",
    "mbart": "encoder_decoder of=bart two_matrices learned_positions",
    "metaclip_2": "own_scales",
    "minimax_m2": "qk_norm bias_balanced",
    "ministral": "decoder of=mistral",
    "mistral": "decoder",
    "mixtral": "decoder of=mistral",
    "mlcd": "own_scales",
    "mlcd_vision_model": "own_scales",
    "modernbert": "encoder",
    "mpnet": "encoder post_norm",
    "mpt": "two_matrices relative_positions",
    "mt5": "encoder_decoder of=t5 overflows_fp16 relative_positions unit_head",
    "mvp": "post_norm",
    "nemotron": "two_matrices",
    "nemotron_h": "decoder no_positions",
    "nystromformer": "post_norm",
    "olmo2": "decoder qk_norm branch_norm",
    "olmo3": "decoder of=olmo2 qk_norm branch_norm",
    "olmoe": "qk_norm",
    "openai-gpt": "post_norm own_scales",
    "opt": "decoder two_matrices learned_positions",
    "pegasus": "encoder_decoder two_matrices",
    "persimmon": "two_matrices",
    "phi": "decoder two_matrices overflows_fp16 parallel",
    "phi3": "decoder of=phi",
    "phimoe": "decoder of=phi",
    "pix2struct": "own_scales",
    "plbart": "post_norm",
    "prophetnet": "post_norm",
    "qwen2": "decoder overflows_fp16",
    "qwen2_5_vl": "decoder of=qwen2",
    "qwen2_moe": "decoder of=qwen2 overflows_fp16",
    "qwen2_vl": "decoder of=qwen2",
    "qwen3": "decoder qk_norm overflows_fp16",
    "qwen3_5": "decoder of=qwen3.5-hybrid",
    "qwen3_5_moe": "decoder of=qwen3.5-hybrid",
    "qwen3_moe": "decoder of=qwen3 qk_norm overflows_fp16",
    "qwen3_next": "decoder of=qwen3.5-hybrid qk_norm",
    "qwen3_vl": "decoder of=qwen3",
    "rembert": "post_norm",
    "resnet": "vision",
    "roberta": "encoder two_matrices post_norm learned_positions reserved_positions",
    "roberta-prelayernorm": "encoder of=roberta",
    "roformer": "encoder post_norm",
    "sam3": "own_scales",
    "smollm3": "decoder of=llama",
    "smollm4": "qk_norm",
    "splinter": "post_norm",
    "squeezebert": "post_norm",
    "starcoder2": "two_matrices",
    "swin": "vision",
    "swinv2": "vision of=swin",
    "switch_transformers": "encoder_decoder of=t5 unit_head",
    "t5": "encoder_decoder two_matrices overflows_fp16 relative_positions unit_head",
    "tapas": "post_norm",
    "time_series_transformer": "post_norm",
    "umt5": "encoder_decoder of=t5 overflows_fp16 relative_positions unit_head",
    "videoprism_vision_model": "own_scales",
    "visual_bert": "post_norm",
    "vit": "vision two_matrices",
    "vit_mae": "vision two_matrices",
    "wav2vec2": "speech post_norm",
    "wav2vec2-bert": "speech of=wav2vec2",
    "wav2vec2-conformer": "speech of=wav2vec2",
    "wavlm": "post_norm",
    "whisper": "speech two_matrices",
    "xglm": "two_matrices",
    "xlm": "post_norm learned_positions",
    "xlm-roberta": "encoder of=roberta two_matrices post_norm learned_positions reserved_positions",
    "xlm-roberta-xl": "encoder of=roberta",
    "xlnet": "relative_positions",
}


def _row(words: str) -> Family:
    said: dict[str, Any] = {}
    for word in words.split():
        name, is_of, lineage = word.partition("=")
        if word in KINDS:
            said["kind"] = word
        else:
            said[name] = lineage if is_of else True
    return Family(**said)


FAMILIES: dict[str, Family] = {name: _row(words) for name, words in _WORDS.items()}
_FACTS = tuple(field.name for field in fields(Family) if field.type == "bool")
_KIND_OF = {row.of or name: row.kind for name, row in FAMILIES.items()}


def family_of(names: Iterable[str]) -> Family:
    """Return what is true of any of these model types: a whole model and its text part."""
    rows = [FAMILIES[name] for name in names if name in FAMILIES]
    said: dict[str, Any] = {fact: any(getattr(row, fact) for row in rows) for fact in _FACTS}
    return Family(kind=next((row.kind for row in rows if row.kind), None), **said)


def lineage_of(model_type: str) -> str:
    """Return the lineage of a model type, as runs of fine-tuning name it; most are their own."""
    row = FAMILIES.get(model_type)
    return model_type if row is None else row.of or model_type


def kind_of(lineage: str) -> str | None:
    """Return which of `KINDS` a lineage is; None of one that no row names."""
    return _KIND_OF.get(lineage)
