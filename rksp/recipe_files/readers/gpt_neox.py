"""GPT-NeoX and Pythia: one flat YAML file in JSON style, with hyphens and underscores."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    lowest_rate,
    optimizer,
    put_decay_until,
    put_precision,
    schedule,
    stated_objective,
    switches,
    warmup,
    warmup_share,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row
from rksp.recipe_files.table.shape import read_shape

_GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")
_MULTIPLE = 256


def _precision(draft: Draft) -> None:
    """Set the precision from `precision` or DeepSpeed's switches; fp16's `type` can be bfloat16."""
    named = draft.text("precision")
    kind = draft.text("fp16.type")
    if named is not None:
        put_precision(draft, named)
    elif draft.true("fp16.enabled") is not None and kind is not None:
        put_precision(draft, kind)
    else:
        switches(bf16__enabled="bf16", fp16__enabled="fp16")(draft)


def _warmup(draft: Draft) -> None:
    """Set the warm-up, a share of the decay's steps, by default 0.01 (megatron/training.py)."""
    share, end = draft.number("warmup"), draft.number("lr_decay_iters")
    if end is None or (share is not None and share.value >= 1):
        warmup(draft, "warmup_steps", ["warmup"])
        warmup_share(0.01)(draft)
        return
    part = share.value if share is not None else 0.01
    text = f"{part:g} of {end.value} steps of the schedule"
    draft.put("warmup_steps", round(part * end.value), end, share, text=text)


def _decay(draft: Draft) -> None:
    """Set the end of the schedule: `lr_decay_iters`, by default the end of the run."""
    found = draft.number("lr_decay_iters")
    share = draft.number("lr_decay_fraction")
    if found is None and share is not None:
        end = int(share.value * int(draft.value("max_steps")))
        found = dataclasses.replace(share, value=end)
    if found is not None and found.value != draft.value("max_steps"):
        put_decay_until(draft, int(found.value), found)
    for key in ("use_mup", "mup_embedding_mult", "mup_output_temp"):
        if draft.true(key) is not None or (key != "use_mup" and draft.get(key) is not None):
            draft.note(f"{key}: rates and scales follow μP, per group; rksp reads one rate.")
            return


def _model(draft: Draft) -> None:
    if draft.true("finetune") is not None:  # weights alone, without the optimizer
        draft.start_trained()
    sizes = read_shape(
        draft,
        num_hidden_layers="num_layers",
        hidden_size="hidden_size",
        num_attention_heads="num_attention_heads",
    )
    if not sizes:
        return
    attention = str(getattr(draft.get("attention_config"), "value", ""))
    other = next((kind for kind in ("rwkv", "mamba", "gmlp") if kind in attention), None)
    experts = draft.number("moe_num_experts", "num_experts")
    norm, places = draft.text("norm"), draft.text("pos_emb")
    activation = draft.text("activation")
    gate = activation.value if activation is not None and activation.value in _GATED else None
    is_llama = norm is not None and norm.value == "rmsnorm" and gate == "swiglu"
    kind = "llama" if is_llama else "gpt_neox"
    if other is not None:
        draft.no_target(
            f"its blocks are {other}; name a transformers model with such blocks as TARGET."
        )
    elif experts is not None and experts.value > 1:
        draft.no_target(f"it has {experts.value} experts, but transformers' gpt_neox has none.")
    elif kind == "gpt_neox" and gate is not None:
        draft.no_target(f"its feed-forward is {gate}, but transformers' gpt_neox has no gate.")
    elif kind == "gpt_neox" and norm is not None and "layernorm" not in norm.value:
        draft.no_target(f"its norm is {norm.value}, but transformers' gpt_neox has layernorm.")
    elif places is not None and places.value != "rotary":
        draft.no_target(f"its positions are {places.value}, but gpt_neox has rotary ones.")
    elif kind == "llama":
        _describe_llama(draft, sizes)
    else:
        _describe(draft, sizes)


def _describe_llama(draft: Draft, sizes: dict[str, Any]) -> None:
    """Describe RMSNorm with SwiGLU as Llama or Mistral (configs/llama, configs/mistral)."""
    groups = draft.count("num_kv_heads", default=sizes["num_attention_heads"])
    window = draft.get("sliding_window_width")
    changes = {
        "num_key_value_heads": groups,
        "intermediate_size": _gated_width(_inner(draft, sizes["hidden_size"])),
        "max_position_embeddings": draft.count("max_position_embeddings", "seq_length"),
        "vocab_size": draft.count("padded_vocab_size"),
        "tie_word_embeddings": draft.true("no_weight_tying") is None,
    }
    draft.describe("llama" if window is None else "mistral", sizes | changes)


def _inner(draft: Draft, width: int) -> int:
    """Return the feed-forward width that the file names, by default four times the model's."""
    factor = draft.amount("expansion_factor", default=4)
    return int(draft.amount("intermediate_size", "ffn_hidden_size", default=factor * width))


def _gated_width(named: int) -> int:
    """Return the width of the product of gate and input, which is a third of the named one.

    Two thirds of it, so that the gate costs no parameters, are shared by the gate and the input;
    the half is rounded up to a multiple of 256 (megatron/model/transformer.py, ParallelMLP).
    """
    return -(-(int(named * 2 / 3) // 2) // _MULTIPLE) * _MULTIPLE


def _describe(draft: Draft, sizes: dict[str, Any]) -> None:
    vocabulary, width = draft.count("padded_vocab_size", "vocab_size"), sizes["hidden_size"]
    notes = []
    if vocabulary is None:
        notes.append("The vocabulary is the tokenizer's; transformers' default of 50432 is used.")
    changes = {
        "intermediate_size": _inner(draft, width),
        "max_position_embeddings": draft.count("max_position_embeddings", "seq_length"),
        "vocab_size": vocabulary,
        "rope_parameters.partial_rotary_factor": float(draft.amount("rotary_pct", default=1.0)),
        "use_parallel_residual": draft.true("gpt_j_residual") is not None,
        "tie_word_embeddings": draft.true("no_weight_tying") is None,
        "initializer_range": _initial_std(draft, width, notes),
    }
    draft.describe("gpt_neox", sizes | changes, *notes)


def _initial_std(draft: Draft, width: int, notes: list[str]) -> float | None:
    """Note how projections are initialized; the default of outputs is scaled_normal.

    Source: megatron/model/init_functions.py and megatron/neox_arguments/neox_args.py.
    """
    method, output = draft.text("init_method"), draft.text("output_layer_init_method")
    outer = output.value if output is not None else "scaled_normal"
    if outer != (method.value if method is not None else "normal"):
        notes.append(
            f"Output projections are initialized by {outer}; gpt_neox has one std for all."
        )
    if method is not None and method.value == "small_init":
        return round(math.sqrt(2 / (5 * width)), 8)
    return float(draft.amount("init_method_std", default=0.02))


READER = Reader(
    name="gpt-neox",
    title="GPT-NeoX",
    version="ea7aefd8 (2024)",
    source="EleutherAI/gpt-neox, megatron/neox_arguments/{neox_args,deepspeed_args}.py, "
    "megatron/learning_rates.py and megatron/training.py",
    marks=(
        Marks(
            some=(
                "num_layers hidden_size seq_length train_iters lr_decay_iters lr_decay_style "
                "pipe_parallel_size model_parallel_size pos_emb no_weight_tying "
                "output_layer_parallelism attention_config"
            ),
            least=3,
            none="trainer language_model MODEL_ARGS lr train_micro_batch_size",
            syntax="yaml json",
        ),
        Marks(
            all="optimizer.params.lr train_micro_batch_size_per_gpu",
            some="train_iters lr_decay_iters gas lr_decay_style",
            syntax="yaml",
        ),
    ),
    steps=(
        Row("optimizer", "optimizer.type", optimizer, "adamw"),
        Row("learning_rate", "optimizer.params.lr lr"),
        betas("optimizer.params.betas"),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.999),
        Row("adam_epsilon", "optimizer.params.eps", default=1e-8),
        Row("weight_decay", "weight_decay optimizer.params.weight_decay", default=0.1),
        Row("max_grad_norm", "gradient_clipping", clip, 1.0),
        Row("sequence_length", "seq_length"),
        batch(
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps gas",
            whole="train_batch_size",
            shared=("pipe_parallel_size", "model_parallel_size"),
        ),
        Row("max_steps", "train_iters"),
        Row("schedule", "lr_decay_style", schedule, "linear"),
        Row("min_lr_ratio", "min_lr", lowest_rate, 0.0),
        _warmup,
        _decay,
        _precision,
        Row("precision", "", default="fp32"),
        stated_objective("train_impl", reinforce="other"),
        _model,
    ),
)
