"""GPT-NeoX and Pythia: one flat YAML in JSON's clothes, hyphens and underscores mixed.

Source of names and defaults: EleutherAI/gpt-neox, megatron/neox_arguments/neox_args.py.
"""

from __future__ import annotations

import math

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import (
    put_batch,
    put_optimizer,
    put_precision,
    put_ratio,
    put_schedule,
    put_warmup_share,
)
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.has("num_layers", "hidden_size", "seq_length") or document.has(
        "optimizer.params.lr", "train_micro_batch_size_per_gpu"
    )


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer.type"))
    draft.take("learning_rate", "optimizer.params.lr", "lr")
    draft.take_betas("optimizer.params.betas")
    draft.take("adam_epsilon", "optimizer.params.eps")
    draft.take("weight_decay", "weight_decay", "optimizer.params.weight_decay")
    draft.take_clip("gradient_clipping")
    draft.take("sequence_length", "seq_length")
    _batch(draft)
    draft.take("max_steps", "train_iters")
    put_schedule(draft, draft.text("lr_decay_style"))
    put_ratio(draft, draft.number("min_lr"))
    put_warmup_share(draft, draft.number("warmup"))
    _precision(draft)
    draft.default(
        optimizer="adamw",
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.01,
        max_grad_norm=1.0,
        schedule="linear",
        min_lr_ratio=0.0,
    )
    if draft.knows("max_steps"):
        draft.default(warmup_steps=round(0.01 * int(draft.value("max_steps"))))
    _model(draft)


def _batch(draft: Draft) -> None:
    whole = draft.number("train_batch_size")
    steps = draft.number("gradient_accumulation_steps", "gas")
    if whole is not None:
        draft.put("batch_size", whole.value, whole)
        if steps is not None:
            draft.put("gradient_accumulation_steps", steps.value, steps)
        return
    shared = 1
    for key in ("pipe_parallel_size", "model_parallel_size"):
        found = draft.number(key)
        shared *= max(1, int(found.value)) if found is not None else 1
    put_batch(draft, draft.number("train_micro_batch_size_per_gpu"), steps, replicas=shared)


def _precision(draft: Draft) -> None:
    named = draft.text("precision")
    if named is not None:
        put_precision(draft, named)
        return
    for key, precision in (("bf16.enabled", "bf16"), ("fp16.enabled", "fp16")):
        found = draft.get(key)
        if found is not None and found.value is True:
            kind = draft.text("fp16.type")
            if key.startswith("fp16") and kind is not None:
                put_precision(draft, kind)
            else:
                draft.put("precision", precision, found)
            return


def _model(draft: Draft) -> None:
    layers, width = draft.number("num_layers"), draft.number("hidden_size")
    heads = draft.number("num_attention_heads")
    if layers is None or width is None or heads is None:
        draft.no_target("the file gives no depth, width and heads; name a TARGET.")
        return
    attention = str(getattr(draft.get("attention_config"), "value", ""))
    other = next((kind for kind in ("rwkv", "mamba", "gmlp") if kind in attention), None)
    experts = draft.number("moe_num_experts", "num_experts")
    norm, places = draft.text("norm"), draft.text("pos_emb")
    if other is not None:
        draft.no_target(f"its blocks are {other}, which transformers' gpt_neox has not.")
    elif experts is not None and experts.value > 1:
        draft.no_target(f"it has {experts.value} experts, which transformers' gpt_neox has not.")
    elif norm is not None and norm.value not in ("layernorm", "non_parametric_layernorm"):
        draft.no_target(f"its norm is {norm.value}, and transformers' gpt_neox has layernorm.")
    elif places is not None and places.value != "rotary":
        draft.no_target(f"its positions are {places.value}, and gpt_neox has rotary ones.")
    else:
        _describe(draft, int(layers.value), int(width.value), int(heads.value))


def _describe(draft: Draft, layers: int, width: int, heads: int) -> None:
    inner = draft.number("intermediate_size", "ffn_hidden_size")
    share = draft.number("rotary_pct")
    untied, parallel = draft.get("no_weight_tying"), draft.get("gpt_j_residual")
    longest = draft.number("max_position_embeddings", "seq_length")
    vocabulary = draft.number("padded_vocab_size", "vocab_size")
    notes = []
    if vocabulary is None:
        notes.append("The vocabulary is the tokenizer's; transformers' default of 50432 is used.")
    draft.describe(
        "gpt_neox",
        {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "intermediate_size": int(inner.value) if inner is not None else 4 * width,
            "max_position_embeddings": int(longest.value) if longest is not None else None,
            "vocab_size": int(vocabulary.value) if vocabulary is not None else None,
            "rope_parameters.partial_rotary_factor": float(share.value)
            if share is not None
            else 1.0,
            "use_parallel_residual": parallel is not None and parallel.value is True,
            "tie_word_embeddings": not (untied is not None and untied.value is True),
            "initializer_range": _initial_std(draft, width, notes),
        },
        *notes,
    )


def _initial_std(draft: Draft, width: int, notes: list[str]) -> float | None:
    """Standard deviation of the input projections (neox: megatron/model/init_functions.py)."""
    method, output = draft.text("init_method"), draft.text("output_layer_init_method")
    if output is not None and (method is None or output.value != method.value):
        notes.append(
            f"Output projections are initialized by {output.value}, which gpt_neox cannot express."
        )
    if method is not None and method.value == "small_init":
        return round(math.sqrt(2 / (5 * width)), 8)
    std = draft.number("init_method_std")
    return float(std.value) if std is not None else 0.02


READER = Reader(name="gpt-neox", title="GPT-NeoX", matches=_matches, read=_read)
