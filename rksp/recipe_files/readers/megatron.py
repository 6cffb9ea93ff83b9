"""Megatron-LM, and GPT-NeoX and NeMo, which grew from it.

Megatron's flags stand in a shell script, or in a YAML of one of two forms: `MODEL_ARGS` of the
functional tests, whose keys are flags, and `--yaml-cfg` files with `language_model`,
`model_parallel` and the rest at the top (examples/gpt3/gpt_config.yaml). Megatron-DeepSpeed's
scripts are the same flags. GPT-NeoX and Pythia have one flat YAML file in JSON style, with hyphens
and underscores; NeMo has Hydra's YAML with `trainer`, `exp_manager` and `model.optim.sched`.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.by_name import adapters as adapters  # a step of NeMo's table
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import DECAY_SHAPES

_SHARED = (
    "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size "
    "model_parallel.tensor_model_parallel_size model_parallel_size "
    "model_parallel.pipeline_model_parallel_size"
)
_SPECTRAL = {"match_rms_adamw": 0.2, "spectral": 1.0}  # factor of √max(rows, columns) by scale
_SHAPE = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "max_position_embeddings",
}


def _batch(draft: Draft) -> None:
    whole = draft.number("global_batch_size", "batch_size")
    micro = draft.number("micro_batch_size")
    convert.batch(draft, "micro_batch_size", whole="global_batch_size", shared=_SHARED)
    if whole is not None and micro is None and not draft.knows("batch_size"):
        convert.batch(draft, "batch_size", shared=_SHARED)
    ramp = draft.get("rampup_batch_size")
    if ramp is None or not isinstance(ramp.value, list) or len(ramp.value) != 3:
        return
    start, increment, samples = (int(part) for part in draft.numbers(ramp))
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
    steps = 0
    for (start, smaller), (end, _) in pairwise(ramp):
        taken = (end - start) * smaller
        if samples < taken:
            return steps + round(samples / smaller)
        samples, steps = samples - taken, end
    return steps + round(samples / size)


_RESTS = ("batch_size", "sequence_length")
_DECAY = ("lr_decay_iters", "lr_decay_samples", "lr_decay_tokens")


def _put_counted(draft: Draft, name: str, *keys: str) -> bool:
    counted = _counted(draft, *keys)
    if counted is not None:
        steps, found, text = counted
        draft.put(name, steps, found, text=text, after=_RESTS if text else ())
    return counted is not None


def _steps(draft: Draft) -> None:
    keys = ("train_iters", "train_tokens", "train_samples")
    if not _put_counted(draft, "max_steps", *keys):
        draft.stands_elsewhere("max_steps", keys)


def _warmup(draft: Draft) -> None:
    keys = ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_tokens")
    is_counted = _put_counted(draft, "warmup_steps", *keys)
    share = draft.number("lr_warmup_fraction", "warmup")
    if share is not None and not is_counted:
        end = _counted(draft, *_DECAY)
        total = end[0] if end is not None else int(draft.value("max_steps"))
        text = f"{share.value:g} of {total} steps"
        after = () if end is not None else ("max_steps",)
        draft.put("warmup_steps", round(share.value * total), share, text=text, after=after)
    draft.default("warmup_steps", 0)


def _fall(draft: Draft) -> None:
    counted = _counted(draft, *_DECAY)
    if draft.value("schedule") == "wsd":
        last = draft.number("lr_wsd_decay_iters")
        samples = draft.number("lr_wsd_decay_samples")
        if last is None and samples is not None:
            steps = round(samples.value / int(draft.value("batch_size")))
            last = dataclasses.replace(samples, value=steps)
        if last is not None:
            draft.put("decay_steps", int(last.value), last)
        style = draft.text_or("exponential", "lr_wsd_decay_style")
        draft.put("decay_shape", DECAY_SHAPES.get(style.value, "exponential"), style)
    elif counted is not None and counted[0] != int(draft.value("max_steps")):
        convert.put_decay_until(draft, counted[0], counted[1])


_OWN_KINDS = ("bert", "t5", "retro", "vision", "vlm", "mamba")


def _model(draft: Draft) -> None:
    if draft.true("finetune") is not None or draft.text("pretrained_checkpoint") is not None:
        draft.names_weights = True
    keys = {name: f"{key} language_model.{key}" for name, key in _SHAPE.items()}
    sizes = convert.read_shape(draft, **keys)
    experts = draft.amount("num_experts", "language_model.num_moe_experts", default=1)
    weights = draft.text("hf_checkpoint")  # of slime and its kin, whose model stands in a file
    if not sizes and weights is not None:
        draft.names_weights = True
        draft.describe(str(weights.value), {})
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
    kinds = f"{program} {draft.word('tokenizer_type')}"
    has_two = draft.number("num_decoder_layers", "decoder_num_layers") is not None
    spec = str(draft.document.data.get("spec", "gpt"))  # of its blocks
    if has_two or "gpt" not in spec or any(word in kinds for word in _OWN_KINDS):
        draft.no_target(f"{program} trains its own kind of model; name the same model as TARGET.")
        return
    rate = draft.number("decoupled_lr")
    if rate is not None:
        draft.note(
            f"Embeddings and the head have their own rate ({rate.value:g}); rksp reads one rate."
        )
    note = "Megatron divides the output projections' std by √(2 × layers); transformers' "
    std = draft.amount("init_method_std", "language_model.init_method_std", default=0.02)
    is_gpt2 = "gpt2bpe" in draft.word("tokenizer_type")  # whose vocabulary Megatron pads
    vocabulary = draft.count("vocab_size", "padded_vocab_size") or (50304 if is_gpt2 else None)
    settings: dict[str, object] = {
        **sizes,
        "vocab_size": vocabulary,
        "initializer_range": float(std),
        "tie_word_embeddings": draft.true("untie_embeddings_and_output_weights") is None,
    }
    is_rms = draft.word("normalization", "language_model.normalization") == "rmsnorm"
    is_gated = draft.true("swiglu") is not None
    if is_rms and not is_gated and draft.true("squared_relu", "gelu") is not None:
        draft.no_target("its feed-forward has no gate beside RMSNorm; name a TARGET.")
        return
    if is_gated or is_rms:
        heads, base = sizes["num_attention_heads"], draft.number("rotary_base")
        settings |= {
            "num_key_value_heads": draft.count("num_query_groups", "num_key_value_heads") or heads,
            "rope_parameters.rope_theta": None if base is None else float(base.value),
        }
        notes = [] if is_rms else ["Its norm is LayerNorm; transformers' llama has RMSNorm."]
        draft.describe("llama", settings, f"{note}llama does not.", *notes)
        return
    places = ("position_embedding_type", "language_model.position_embedding_type")
    is_rotary = draft.word(*places) == "rope"
    notes = ["Its positions are rotary; transformers' gpt2 has learned ones."] if is_rotary else []
    draft.describe("gpt2", convert.as_gpt2(settings), f"{note}gpt2 does too.", *notes)


def _muon(draft: Draft) -> None:
    mode = draft.text_or("spectral", "muon_scale_mode")
    factor = draft.number_or(1.0, "muon_extra_scale_factor")
    name, extra = mode.value, factor.value
    if name == "spectral":
        scale = min(_SPECTRAL, key=lambda one: abs(math.log(_SPECTRAL[one] / extra)))
        is_same = math.isclose(_SPECTRAL[scale], extra)
    else:
        scale, is_same = "original", name == "shape_scaling" and extra == 1.0
    if mode.key or factor.key:
        near = "" if is_same else f"{name} × {extra:g}, the nearest scale"
        draft.put("muon_scale", scale, mode, factor, text=near)


_GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")


def _neox_warmup(draft: Draft) -> None:
    """Set the warm-up, a share of the decay's steps, by default 0.01 (megatron/training.py)."""
    share, end = draft.number_or(0.01, "warmup"), draft.number("lr_decay_iters")
    if end is None or share.value >= 1:
        convert.warmup(draft, "warmup_steps", ["warmup"])
        convert.warmup_share(draft, 0.01)
        return
    text = f"{share.value:g} of {end.value} steps of the schedule"
    draft.put("warmup_steps", round(share.value * end.value), end, share, text=text)


def _neox_decay(draft: Draft) -> None:
    found = draft.number("lr_decay_iters")
    share = draft.number("lr_decay_fraction")
    if found is None and share is not None:
        end = int(share.value * int(draft.value("max_steps")))
        found = dataclasses.replace(share, value=end)
    if found is not None and found.value != draft.value("max_steps"):
        convert.put_decay_until(draft, int(found.value), found)


def _neox_model(draft: Draft) -> None:
    if draft.true("finetune") is not None:  # weights alone, without the optimizer
        draft.names_weights = True
    sizes = convert.read_shape(
        draft,
        num_hidden_layers="num_layers",
        hidden_size="hidden_size",
        num_attention_heads="num_attention_heads",
    )
    if not sizes:
        return
    attention = str(getattr(draft.get("attention_config"), "value", ""))
    other = next((kind for kind in ("rwkv", "mamba", "gmlp") if kind in attention), None)
    experts = draft.amount("moe_num_experts", "num_experts", default=0)
    norm = draft.text_or("layernorm", "norm").value
    places = draft.text_or("rotary", "pos_emb").value
    activation = draft.text_or("", "activation").value
    gate = activation if activation in _GATED else None
    is_llama = norm == "rmsnorm" and gate == "swiglu"
    if other is not None:
        draft.no_target(
            f"its blocks are {other}; name a transformers model with such blocks as TARGET."
        )
    elif experts > 1:
        draft.no_target(f"it has {experts} experts, but transformers' gpt_neox has none.")
    elif gate is not None and not is_llama:
        draft.no_target(f"its feed-forward is {gate}, but transformers' gpt_neox has no gate.")
    elif "layernorm" not in norm and not is_llama:
        draft.no_target(f"its norm is {norm}, but transformers' gpt_neox has layernorm.")
    elif places != "rotary":
        draft.no_target(f"its positions are {places}, but gpt_neox has rotary ones.")
    elif is_llama:
        _describe_llama(draft, sizes)
    else:
        _describe(draft, sizes)


def _describe_llama(draft: Draft, sizes: dict[str, int]) -> None:
    groups = draft.count("num_kv_heads") or sizes["num_attention_heads"]
    window = draft.get("sliding_window_width")
    settings = {
        **sizes,
        "num_key_value_heads": groups,
        "intermediate_size": _gated_width(draft, _inner(draft, sizes["hidden_size"])),
        "max_position_embeddings": draft.count("max_position_embeddings", "seq_length"),
        "vocab_size": draft.count("padded_vocab_size"),
        "tie_word_embeddings": draft.true("no_weight_tying") is None,
    }
    draft.describe("llama" if window is None else "mistral", settings)


def _inner(draft: Draft, width: int) -> int:
    factor = draft.amount("expansion_factor", default=4)
    return int(draft.amount("intermediate_size", "ffn_hidden_size", default=factor * width))


def _gated_width(draft: Draft, named: int) -> int:
    """Return the width of the product of gate and input, which is a third of the named one.

    Two thirds of it, so that the gate costs no parameters, are shared by the gate and the input;
    the half is rounded up to a multiple (megatron/model/transformer.py, ParallelMLP).
    """
    unit = int(draft.amount("mlp_multiple_of", default=256))
    return -(-(int(named * 2 / 3) // 2) // unit) * unit


def _describe(draft: Draft, sizes: dict[str, int]) -> None:
    width = sizes["hidden_size"]
    notes: list[str] = []
    settings: dict[str, object] = {
        **sizes,
        "intermediate_size": _inner(draft, width),
        "max_position_embeddings": draft.count("max_position_embeddings", "seq_length"),
        "vocab_size": draft.count("padded_vocab_size", "vocab_size"),
        "rope_parameters.partial_rotary_factor": float(draft.amount("rotary_pct", default=1.0)),
        "use_parallel_residual": draft.true("gpt_j_residual") is not None,
        "tie_word_embeddings": draft.true("no_weight_tying") is None,
        "initializer_range": _initial_std(draft, width, notes),
    }
    draft.describe("gpt_neox", settings, *notes)


def _initial_std(draft: Draft, width: int, notes: list[str]) -> float | None:
    """Note how projections are initialized; the default of outputs is scaled_normal.

    Source: megatron/model/init_functions.py and megatron/neox_arguments/neox_args.py.
    """
    method = draft.text_or("normal", "init_method").value
    outer = draft.text_or("scaled_normal", "output_layer_init_method").value
    if outer != method:
        notes.append(
            f"Output projections are initialized by {outer}; gpt_neox has one std for all."
        )
    if method == "small_init":
        return round(math.sqrt(2 / (5 * width)), 8)
    return float(draft.amount("init_method_std", default=0.02))


_OPTIM = "model.optim"


def _nemo_fall(draft: Draft) -> None:
    """Set the decay; CosineAnnealing ends with `constant_steps` at the lowest rate."""
    found = draft.number(f"{_OPTIM}.sched.constant_steps")
    total, warm = int(draft.value("max_steps")), int(draft.value("warmup_steps"))
    if found is not None and 0 < found.value < total - warm:
        span = total - warm - int(found.value)
        text = f"{total} - {warm} - {found.value} held at the end"
        draft.put("decay_steps", span, found, text=text, after=("max_steps",))


def _rate(draft: Draft) -> None:
    """Set the peak; NoamAnnealing's rate is a factor of 1 / √(d_model × warm-up)."""
    rate = draft.number(f"{_OPTIM}.lr")
    if rate is None or draft.text_or("", f"{_OPTIM}.sched.name").value != "NoamAnnealing":
        convert.number(draft, "learning_rate", [f"{_OPTIM}.lr"])
        return
    width = draft.number(f"{_OPTIM}.sched.d_model")
    warm = draft.number(f"{_OPTIM}.sched.warmup_steps")
    if width is None or warm is None or warm.value < 1 or width.value < 1:
        draft.assume(
            "learning_rate",
            f"{rate.key} is a factor of NoamAnnealing, whose d_model or warmup_steps is not in "
            "this file; give the peak with --lr",
            rate,
        )
        return
    peak = float(f"{rate.value / (width.value * warm.value) ** 0.5:.6g}")
    text = f"{rate.value:g} / √({width.value} × {warm.value}), the peak of NoamAnnealing"
    draft.put("learning_rate", peak, rate, width, warm, text=text)


def _nemo_decay(draft: Draft) -> float:
    return 0.01 if draft.text_or("", f"{_OPTIM}.name").value == "adamw" else 0.0


def _nemo_start(draft: Draft) -> None:
    start = draft.text(
        *("restore_from_path", "model.restore_from_path"),
        "pretrained_checkpoint.restore_from_path",  # NeMo-Aligner
    )
    if start is not None:
        draft.names_weights = True
        draft.note(f"It starts from {start.value}, which rksp does not read.")


def _nemo_model(draft: Draft) -> None:
    sizes = convert.read_shape(
        draft,
        num_hidden_layers="model.num_layers",
        hidden_size="model.hidden_size",
        num_attention_heads="model.num_attention_heads",
    )
    if not sizes:
        return
    encoder = draft.get("model.encoder_arch", "model.encoder")
    if encoder is not None:
        draft.put("objective", "seq2seq", encoder)
        draft.no_target("it is an encoder-decoder of NeMo's own; name a TARGET.")
        return
    norm, activation = draft.text("model.normalization"), draft.text("model.activation")
    settings: dict[str, object] = {
        **sizes,
        "intermediate_size": draft.count("model.ffn_hidden_size"),
        "max_position_embeddings": draft.count("model.max_position_embeddings"),
        "initializer_range": float(draft.amount("model.init_method_std", default=0.02)),
    }
    note = "NeMo divides the output projections' deviation by √(2 × layers)"
    if norm is None or "rms" not in norm.value.lower():
        same = f"{note}, and so does transformers' gpt2."
        draft.describe("gpt2", convert.as_gpt2(settings), same)
        return
    if activation is not None and "glu" not in activation.value:
        draft.no_target(f"{norm.value} with {activation.value} has no equivalent; name a TARGET.")
        return
    groups = draft.count("model.num_query_groups") or sizes["num_attention_heads"]
    untied = draft.false("model.share_embeddings_and_output_weights")
    extra = {"num_key_value_heads": groups, "tie_word_embeddings": untied is None}
    draft.describe("llama", settings | extra, f"{note}; transformers' llama does not.")
