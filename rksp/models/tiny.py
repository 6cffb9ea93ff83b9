"""Shrink a configuration until it builds in a second, for tests and the table of families.

A shrunken model is a different model; do not score it. Settings are recognized by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from rksp.ground.text import words
from rksp.models.configuration import is_by_layer, resized

_DEPTHS = frozenset(
    words(
        "num_hidden_layers n_layer n_layers num_layers num_encoder_layers num_decoder_layers "
        "encoder_layers decoder_layers depth num_blocks"
    )
)
SIZES: dict[str, int] = {
    name: size
    for size, names in {
        64: "hidden_size n_embd d_model embed_dim dim emb_dim embedding_size word_embed_proj_dim",
        4: (
            "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
            "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
            "num_experts num_local_experts n_routed_experts moe_num_experts "
            "linear_num_value_heads index_n_heads"
        ),
        2: (
            "num_key_value_heads num_kv_heads n_head_kv multi_query_group_num num_experts_per_tok "
            "moe_topk top_k moe_k num_selected top_k_experts linear_num_key_heads "
            "num_experts_per_token o_groups"
        ),
        128: (
            "intermediate_size n_inner d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim "
            "ffn_hidden_size shared_expert_intermediate_size moe_shared_expert_intermediate_size "
            "intermediate_size_mlp mamba_d_ssm"
        ),
        32: (
            "moe_intermediate_size expert_ffn_hidden_size moe_latent_size image_size q_lora_rank "
            "qk_head_dim"
        ),
        1: "n_group topk_group n_shared_experts num_expert_group",
        16: (
            "head_dim rotary_dim d_kv linear_key_head_dim linear_value_head_dim mamba_d_head "
            "mamba_head_dim hidden_size_per_layer_input kv_lora_rank qk_nope_head_dim "
            "qk_rope_head_dim v_head_dim index_head_dim index_topk o_lora_rank"
        ),
        8: "patch_size mamba_num_heads mamba_n_heads mamba_d_state state_size",
        256: "max_position_embeddings n_positions",
        0: "num_kv_shared_layers",
        512: "vocab_size_per_layer_input",
    }.items()
    for name in names.split()
}
VOCABULARY = 512
_ROTARY = {"rope_type": "default", "rope_theta": 10_000.0}
# Types whose default is incomplete, or whose sizes must agree in a special way.
_OWN: dict[str, dict[str, object]] = {
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_v2": {"n_routed_experts": 4, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "xmod": {"default_language": "en_XX"},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "hunyuan_v1_dense": {"head_dim": 16, "rope_parameters": _ROTARY},
    "hunyuan_v1_moe": {"head_dim": 16, "rope_parameters": _ROTARY, "num_experts": 4},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "ministral": {"head_dim": 16, "rope_parameters": _ROTARY},
}
_TOKENS = ("token_id", "token_ids", "token_index", "pad_index", "image_token")
_PER_LAYER_ENDINGS = ("layer_types", "block_types", "layers_block_type", "layer_ids")


def shrunk(
    settings: Mapping[str, object],
    sizes: Mapping[str, int] = SIZES,
    *,
    depth: int = 4,
    vocabulary: int | None = VOCABULARY,
) -> dict[str, object]:
    """Shrink the complete settings of a configuration to tiny size.

    Args:
        settings: The complete settings, nested.
        sizes: The largest value of each size, by name.
        depth: The largest number of layers.
        vocabulary: The largest number of tokens; None leaves it.

    Returns:
        The new settings.
    """
    small = _shrink(settings, sizes, depth, vocabulary)
    return small | (_OWN.get(str(settings.get("model_type")), {}) if sizes else {})


def changed(small: Mapping[str, object], full: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that differ, with the model types, which a configuration needs."""
    result: dict[str, object] = {}
    for key, value in small.items():
        whole = full.get(key)
        if isinstance(value, Mapping) and isinstance(whole, Mapping) and "model_type" in value:
            inner = changed(value, whole)
            if len(inner) > 1:
                result[key] = inner
        elif key == "model_type" or key not in full or value != full[key]:
            result[key] = value
    return result


def _shrink(
    settings: Mapping[str, object], sizes: Mapping[str, int], depth: int, vocabulary: int | None
) -> dict[str, object]:
    depths = {v for k, v in settings.items() if k in _DEPTHS and isinstance(v, int)}
    if "kv_lora_rank" in settings and "num_key_value_heads" in sizes:
        sizes = {**sizes, "num_key_value_heads": 4}  # latent attention has no groups
    result: dict[str, object] = {}
    for key, value in settings.items():
        if key in ("out_features", "out_indices", "stage_names"):  # they follow the depth
            continue
        if isinstance(value, Mapping) and "short_factor" in value:  # one factor per dimension
            result[key] = _ROTARY
        elif is_by_layer(value) and key != "id2label":
            result[key] = {layer: item for layer, item in value.items() if int(layer) < depth}
        elif isinstance(value, Mapping) and key not in ("id2label", "label2id"):
            result[key] = _shrink(value, sizes, depth, vocabulary)
        elif isinstance(value, bool) or value is None:
            result[key] = value
        elif key in _DEPTHS and isinstance(value, int):
            result[key] = min(value, depth)
        elif isinstance(value, int) and vocabulary and key in ("vocab_size", "n_vocab"):
            result[key] = min(value, vocabulary)
        elif (
            isinstance(value, int) and vocabulary and key.endswith(_TOKENS) and value >= vocabulary
        ):
            result[key] = vocabulary - 1
        elif isinstance(value, list) and vocabulary and key.endswith(_TOKENS):
            result[key] = [min(v, vocabulary - 1) if isinstance(v, int) else v for v in value]
        elif key in sizes and isinstance(value, int):
            result[key] = min(value, sizes[key])
        elif isinstance(value, list) and (
            (len(value) in depths and len(value) > depth) or key.endswith(_PER_LAYER_ENDINGS)
        ):
            result[key] = resized(value, min(depth, len(value))) if value else value
        else:
            result[key] = value
    return result
