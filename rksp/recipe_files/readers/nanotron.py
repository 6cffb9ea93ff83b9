"""Hugging Face nanotron: everything is in the file, down to the parallelism."""

from __future__ import annotations

from rksp.ground.text import words
from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.convert import clip, lowest_rate, optimizer, put_precision, schedule
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import DECAY_SHAPES
from rksp.recipe_files.table.reader import Marks, Reader, Row

_SCHEDULER = "optimizer.learning_rate_scheduler"
_DENSE = {"is_llama_config": "llama", "is_qwen2_config": "qwen2", "is_starcoder2_config": None}
_SETTINGS = words(
    "hidden_act hidden_size intermediate_size max_position_embeddings num_attention_heads "
    "num_hidden_layers num_key_value_heads rms_norm_eps tie_word_embeddings vocab_size"
)
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def _batch(draft: Draft) -> None:
    keys = ("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica", "parallelism.dp")
    found = [draft.number(key) for key in keys]
    if found[0] is None:
        return
    micro, steps, copies = (int(f.value) if f is not None else 1 for f in found)
    text = f"{micro} × {steps} accumulated × {copies} replicas"
    draft.put("batch_size", micro * steps * copies, *found, text=text)
    draft.put("gradient_accumulation_steps", steps, found[1])


def _fall(draft: Draft) -> None:
    """Set the decay: from `lr_decay_starting_step` (or the warm-up's end) for `lr_decay_steps`.

    A later start makes it a warm-up, a plateau and a fall (src/nanotron/helpers.py).
    """
    start = draft.number(f"{_SCHEDULER}.lr_decay_starting_step")
    span = draft.number(f"{_SCHEDULER}.lr_decay_steps")
    style = draft.text(f"{_SCHEDULER}.lr_decay_style")
    total, warm = int(draft.value("max_steps")), int(draft.value("warmup_steps"))
    if start is not None and start.value > warm:
        shape = DECAY_SHAPES.get(style.value if style is not None else "linear", "linear")
        length = max(1, total - int(start.value))
        draft.put("schedule", "wsd", start, style, text=f"from step {start.value} by {shape}")
        draft.put("decay_shape", shape, style)
        draft.put("decay_steps", length, start, text=f"{total} - {start.value}")
        if span is not None and int(span.value) != length:
            draft.note(
                f"The decay takes {span.value} steps; rksp reads {length}, to the run's end."
            )
    elif span is not None and int(span.value) != total - warm:
        draft.put("decay_steps", int(span.value), span)


def _style(draft: Draft) -> None:
    found = draft.text(f"{_SCHEDULER}.lr_decay_style")
    if found is not None and found.value == "1-sqrt":
        draft.put("schedule", "wsd", found, text="1-sqrt")
        draft.put("decay_shape", "sqrt", found)
        warm = int(draft.value("warmup_steps"))
        draft.put("decay_steps", max(1, int(draft.value("max_steps")) - warm), found)
    else:
        schedule(draft, "schedule", [f"{_SCHEDULER}.lr_decay_style"])
    draft.default("schedule", "linear")


def _precision(draft: Draft) -> None:
    """Set the precision from `model.dtype`; float32 accumulation adds a float32 copy."""
    kind, copy = draft.text("model.dtype"), draft.true("optimizer.accumulate_grad_in_fp32")
    if kind is None:
        draft.default("precision", "bf16" if copy is not None else "bf16-pure", "dtype bfloat16")
        return
    if copy is None and kind.value != "float32":
        kind = Found(
            key=kind.key, value=f"pure_{_SHORT.get(kind.value, kind.value)}", line=kind.line
        )
    put_precision(draft, kind, text="with float32 master weights" if copy is not None else "")


def _mup(draft: Draft) -> bool:
    """Note `use_mup`: spectral initialization and rates by layer (src/nanotron/scaling)."""
    found = draft.true("model.init_method.use_mup")
    if found is not None:
        draft.note(
            f"{found.key}: initialization and rates follow μP, layer by layer; "
            "rksp reads one rate and one standard deviation."
        )
    return found is not None


def _model(draft: Draft) -> None:
    is_mup = _mup(draft)
    settings = draft.mapping("model.model_config")
    kind = next((_DENSE[key] for key in _DENSE if settings.get(key)), None)
    std = draft.amount("model.init_method.std", "model.init_method.initializer_range")
    deviation = settings.get("initializer_range") if std is None else float(std)
    start = draft.text("model.init_method.path")
    if start is not None:
        draft.start_trained()
        draft.note(f"It starts from the weights in {start.value}, which rksp does not read.")
    resumed = draft.text("checkpoints.resume_checkpoint_path")
    if resumed is not None and draft.false("checkpoints.load_optimizer") is not None:
        draft.start_trained()
    if settings.get("is_mamba_config"):
        state = settings.get("ssm_cfg") or {}
        draft.describe(
            "mamba",
            {
                "hidden_size": settings.get("d_model"),
                "num_hidden_layers": settings.get("num_hidden_layers"),
                "vocab_size": settings.get("vocab_size"),
                "state_size": state.get("d_state"),
                "conv_kernel": state.get("d_conv"),
                "expand": state.get("expand"),
                "initializer_range": deviation,
            },
        )
    elif isinstance(settings.get("moe_config"), dict):
        draft.no_target("it has nanotron's own experts, which no transformers model has.")
    elif kind is None:
        draft.no_target("transformers does not have its model; name a TARGET.")
    else:
        wanted = {key: settings.get(key) for key in _SETTINGS}
        notes = [] if is_mup else [
            "nanotron divides the output projections' deviation by √(2 × layers); "
            f"transformers' {kind} does not.",
        ]  # fmt: skip
        draft.describe(kind, wanted | {"initializer_range": deviation}, *notes)


READER = Reader(
    name="nanotron",
    title="nanotron",
    version="0.4",
    source="huggingface/nanotron, src/nanotron/config/config.py and src/nanotron/helpers.py",
    marks=(Marks(all=f"{_SCHEDULER} tokens.micro_batch_size"),),
    steps=(
        Row("optimizer", "optimizer.optimizer_factory.name", optimizer, "adamw"),
        Row("learning_rate", f"{_SCHEDULER}.learning_rate"),
        Row("adam_beta1", "optimizer.optimizer_factory.adam_beta1 optimizer.adam_beta1"),
        Row("adam_beta2", "optimizer.optimizer_factory.adam_beta2 optimizer.adam_beta2"),
        Row("adam_epsilon", "optimizer.optimizer_factory.adam_eps optimizer.adam_eps"),
        Row("weight_decay", "optimizer.weight_decay"),
        Row("max_grad_norm", "optimizer.clip_grad", clip, None),
        Row("sequence_length", "tokens.sequence_length"),
        _batch,
        Row("max_steps", "tokens.train_steps"),
        Row("warmup_steps", f"{_SCHEDULER}.lr_warmup_steps", default=0),
        _style,
        _fall,
        Row(
            "min_lr_ratio",
            f"{_SCHEDULER}.min_decay_lr",
            lowest_rate,
            default=1.0,
            text="min_decay_lr is the peak unless set",
        ),
        _precision,
        _model,
    ),
)
