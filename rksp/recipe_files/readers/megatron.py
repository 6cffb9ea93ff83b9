"""Megatron-LM: the flags of `pretrain_*.py` in a shell script, or in a YAML.

Two YAML forms are known: `MODEL_ARGS` of the functional tests, whose keys are flags, and
`--yaml-cfg` files with `language_model`, `model_parallel` and the rest at the top
(examples/gpt3/gpt_config.yaml). Megatron-DeepSpeed's scripts are the same flags.
"""

from __future__ import annotations

import math
from itertools import pairwise

from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    clip,
    lowest_rate,
    optimizer,
    put_decay_until,
    schedule,
    switches,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import DECAY_SHAPES
from rksp.recipe_files.table.reader import Marks, Reader, Row
from rksp.recipe_files.table.shape import as_gpt2, read_shape

_SHARED = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
           "model_parallel.tensor_model_parallel_size", "model_parallel_size",
           "model_parallel.pipeline_model_parallel_size")  # fmt: skip
_SPECTRAL = {"match_rms_adamw": 0.2, "spectral": 1.0}  # factor of √max(rows, columns) by scale
_SHAPE = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "max_position_embeddings",
}


def _batch(draft: Draft) -> None:
    """Set the global batch, or micro × data parallel; Megatron derives the accumulation."""
    whole = draft.number("global_batch_size", "batch_size")
    micro = draft.number("micro_batch_size")
    batch("micro_batch_size", whole="global_batch_size", shared=_SHARED)(draft)
    if whole is not None and micro is None and not draft.knows("batch_size"):
        batch("batch_size", shared=_SHARED)(draft)
    ramp = draft.get("rampup_batch_size")
    if ramp is None or not isinstance(ramp.value, list) or len(ramp.value) != 3:
        return
    start, increment, samples = (int(part) for part in ramp.value)
    draft.put("batch_ramp", _ramp(start, increment, samples, int(draft.value("batch_size"))), ramp,
              text=f"from {start} by {increment} over {samples} samples")  # fmt: skip


def _ramp(start: int, increment: int, samples: int, full: int) -> tuple[tuple[int, int], ...]:
    """Return the batch ramp; each batch size takes an equal share of the samples.

    Source: megatron/core/num_microbatches_calculator.py, RampupBatchsizeNumMicroBatchesCalculator.
    """
    sizes = list(range(start, full, max(1, increment))) or [start]
    share = samples / len(sizes)
    found, step = [], 0.0
    for size in sizes[:10_000]:
        found.append((round(step), size))
        step += share / size
    return (*found, (round(step), full))


def _counted(draft: Draft, *keys: str) -> tuple[int, Found, str] | None:
    """Return the steps that the first of these keys says in iterations, samples or tokens.

    A growing batch takes more steps for the same samples.
    """
    for key in keys:
        found = draft.number(key)
        if found is None or found.value <= 0:
            continue
        if key.endswith("iters"):
            return max(1, round(found.value)), found, ""
        length = int(draft.value("sequence_length")) if key.endswith("tokens") else 1
        size, ramp = int(draft.value("batch_size")), draft.value("batch_ramp")
        steps = _steps_of(found.value / length, size, ramp)
        unit = "tokens" if key.endswith("tokens") else "samples"
        grown = ", with its ramp" if ramp else ""
        return max(1, steps), found, f"{found.value} {unit} in batches of {size}{grown}"
    return None


def _steps_of(samples: float, size: int, ramp: tuple[tuple[int, int], ...]) -> int:
    """Return the steps that this number of samples takes."""
    steps = 0
    for (start, smaller), (end, _) in pairwise(ramp):
        taken = (end - start) * smaller
        if samples < taken:
            return steps + round(samples / smaller)
        samples, steps = samples - taken, end
    return steps + round(samples / size)


_RESTS = ("batch_size", "sequence_length")


def _steps(draft: Draft) -> None:
    """Set the length of the run from iterations, tokens (Megatron-DeepSpeed) or samples."""
    counted = _counted(draft, "train_iters", "train_tokens", "train_samples")
    if counted is not None:
        steps, found, text = counted
        draft.put("max_steps", steps, found, text=text, after=_RESTS if text else ())


def _warmup(draft: Draft) -> None:
    """Set the warm-up from iterations, samples, tokens, or a share of the decay."""
    counted = _counted(draft, "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_tokens")
    share = draft.number("lr_warmup_fraction", "warmup")
    if counted is not None:
        steps, found, text = counted
        draft.put("warmup_steps", steps, found, text=text, after=_RESTS if text else ())
    elif share is not None:
        end = _counted(draft, "lr_decay_iters", "lr_decay_samples", "lr_decay_tokens")
        total = end[0] if end is not None else int(draft.value("max_steps"))
        text = f"{share.value:g} of {total} steps"
        after = () if end is not None else ("max_steps",)
        draft.put("warmup_steps", round(share.value * total), share, text=text, after=after)
    draft.default("warmup_steps", 0)


def _fall(draft: Draft) -> None:
    """Set the end of decay from `lr_decay_*`; WSD has its own keys (training/arguments.py)."""
    counted = _counted(draft, "lr_decay_iters", "lr_decay_samples", "lr_decay_tokens")
    total = int(draft.value("max_steps"))
    if draft.value("schedule") == "wsd":
        last = draft.number("lr_wsd_decay_iters")
        samples = draft.number("lr_wsd_decay_samples")
        if last is None and samples is not None:
            steps = round(samples.value / int(draft.value("batch_size")))
            last = Found(key=samples.key, value=steps, line=samples.line)
        if last is not None:
            draft.put("decay_steps", int(last.value), last)
        style = draft.text("lr_wsd_decay_style")
        name = style.value if style is not None else "exponential"
        draft.put("decay_shape", DECAY_SHAPES.get(name, "exponential"), style)
    elif counted is not None and counted[0] != total:
        end, found, _ = counted
        put_decay_until(draft, end, found)


def _model(draft: Draft) -> None:
    if draft.true("finetune") is not None or draft.text("pretrained_checkpoint") is not None:
        draft.start_trained()
    keys = {name: f"{key} language_model.{key}" for name, key in _SHAPE.items()}
    sizes = read_shape(draft, **keys)
    experts = draft.amount("num_experts", "language_model.num_moe_experts", default=1)
    if not sizes:
        return
    if experts > 1:
        draft.no_target(f"it has {experts} experts; name the same model as TARGET.")
        return
    program = draft.document.program.lower()
    if "pretrain_bert" in program:
        draft.put("objective", "mlm", Found(key=draft.document.program, value="mlm"))
        draft.describe("bert", sizes, "Megatron's BERT norms before its blocks, bert after them.")
        return
    if any(word in program for word in ("bert", "t5", "retro", "vision", "vlm", "mamba")):
        draft.no_target(f"{program} trains its own kind of model; name the same model as TARGET.")
        return
    is_llama = draft.true("swiglu") is not None or _is(draft, "normalization", "rmsnorm")
    std = draft.amount("init_method_std", "language_model.init_method_std", default=0.02)
    untied = draft.true("untie_embeddings_and_output_weights")
    rate = draft.amount("decoupled_lr")
    if rate is not None:
        draft.note(f"Embeddings and the head have their own rate ({rate:g}); rksp reads one rate.")
    note = (
        "Megatron divides the output projections' std by √(2 × layers); "
        "transformers' {kind} {does}."
    )
    common = {
        "vocab_size": _vocabulary(draft),
        "initializer_range": float(std),
        "tie_word_embeddings": untied is None,
    }
    if is_llama:
        heads = sizes["num_attention_heads"]
        groups = draft.count("num_query_groups", "num_key_value_heads", default=heads)
        base = draft.amount("rotary_base")
        extra = {
            "num_key_value_heads": groups,
            "rope_parameters.rope_theta": None if base is None else float(base),
        }
        notes = [note.format(kind="llama", does="does not")]
        if not _is(draft, "normalization", "rmsnorm"):
            notes.append("Its norm is LayerNorm; transformers' llama has RMSNorm.")
        draft.describe("llama", sizes | common | extra, *notes)
        return
    notes = [note.format(kind="gpt2", does="does too")]
    if _is(draft, "position_embedding_type", "rope"):
        notes.append("Its positions are rotary; transformers' gpt2 has learned ones.")
    draft.describe("gpt2", as_gpt2(sizes | common), *notes)


def _is(draft: Draft, key: str, word: str) -> bool:
    found = draft.text(key, f"language_model.{key}")
    return found is not None and found.value.lower() == word


def _vocabulary(draft: Draft) -> int | None:
    """Return the vocabulary: as given, or GPT-2's tokenizer, padded as Megatron pads it."""
    kind = draft.text("tokenizer_type")
    usual = 50304 if kind is not None and "GPT2BPE" in kind.value else None
    return draft.count("vocab_size", "padded_vocab_size", default=usual)


def _muon(draft: Draft) -> None:
    """Set the scale of Muon's update from its mode and its factor (optimizer_config.py)."""
    mode, factor = draft.text("muon_scale_mode"), draft.number("muon_extra_scale_factor")
    name = mode.value if mode is not None else "spectral"
    extra = factor.value if factor is not None else 1.0
    if name == "spectral":
        scale = min(_SPECTRAL, key=lambda one: abs(math.log(_SPECTRAL[one] / extra)))
        is_same = math.isclose(_SPECTRAL[scale], extra)
    else:
        scale, is_same = "original", name == "shape_scaling" and extra == 1.0
    if mode is not None or factor is not None:
        near = "" if is_same else f"{name} × {extra:g}, the nearest scale"
        draft.put("muon_scale", scale, mode, factor, text=near)


READER = Reader(
    name="megatron",
    written={"warmup_steps": "lr_warmup_iters"},
    title="Megatron-LM",
    version="core 0.16.1",
    source="NVIDIA/Megatron-LM, megatron/core/optimizer/optimizer_config.py, "
    "megatron/core/optimizer_param_scheduler.py and megatron/training/arguments.py",
    marks=(
        Marks(
            some=(
                "num_layers hidden_size seq_length train_iters train_samples micro_batch_size "
                "global_batch_size lr tensor_model_parallel_size"
            ),
            least=3,
            syntax="shell",
        ),
        Marks(
            some=(
                "language_model.num_layers micro_batch_size train_iters lr model_parallel "
                "lr_decay_style optimizer"
            ),
            all="language_model",
            least=2,
            syntax="yaml",
        ),
    ),
    steps=(
        Row("optimizer", "optimizer", optimizer, "adamw"),
        _muon,
        Row("learning_rate", "lr"),
        Row("adam_beta1", "adam_beta1", default=0.9),
        Row("adam_beta2", "adam_beta2", default=0.999),
        Row("adam_epsilon", "adam_eps", default=1e-8),
        Row("weight_decay", "weight_decay", default=0.01),
        Row("max_grad_norm", "clip_grad", clip, 1.0),
        Row("sequence_length", "seq_length encoder_seq_length"),
        _batch,
        _steps,
        Row("schedule", "lr_decay_style", schedule, "linear"),
        _warmup,
        _fall,
        Row("min_lr_ratio", "min_lr", lowest_rate, 0.0),
        switches(
            bf16="bf16", fp16="fp16", model_parallel__bf16="bf16", model_parallel__fp16="fp16"
        ),
        Row("precision", "", default="fp32"),
        _model,
    ),
)
