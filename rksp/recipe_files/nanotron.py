"""Hugging Face nanotron: everything is in the file, down to the parallelism.

Source of names: huggingface/nanotron, src/nanotron/config.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document, Found
from rksp.recipe_files.names import put_optimizer, put_precision, put_ratio, put_schedule
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader

_SCHEDULER = "optimizer.learning_rate_scheduler"
_DENSE = {"is_llama_config": "llama", "is_qwen2_config": "qwen2", "is_starcoder2_config": None}
_SETTINGS = (
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "vocab_size",
)


def _matches(document: Document) -> bool:
    return document.has(_SCHEDULER, "tokens.micro_batch_size")


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer.optimizer_factory.name"))
    draft.take("learning_rate", f"{_SCHEDULER}.learning_rate")
    for name, key in (
        ("adam_beta1", "adam_beta1"),
        ("adam_beta2", "adam_beta2"),
        ("adam_epsilon", "adam_eps"),
    ):
        draft.take(name, f"optimizer.optimizer_factory.{key}", f"optimizer.{key}")
    draft.take("weight_decay", "optimizer.weight_decay")
    draft.take_clip("optimizer.clip_grad")
    draft.take("sequence_length", "tokens.sequence_length")
    _batch(draft)
    draft.take("max_steps", "tokens.train_steps")
    draft.take("warmup_steps", f"{_SCHEDULER}.lr_warmup_steps")
    put_schedule(draft, draft.text(f"{_SCHEDULER}.lr_decay_style"))
    put_ratio(draft, draft.number(f"{_SCHEDULER}.min_decay_lr"))
    _precision(draft)
    draft.default(optimizer="adamw", max_grad_norm=None, schedule="linear", warmup_steps=0)
    _model(draft)


def _batch(draft: Draft) -> None:
    keys = ("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica", "parallelism.dp")
    found = [draft.number(key) for key in keys]
    if found[0] is None:
        return
    micro, steps, copies = (int(f.value) if f is not None else 1 for f in found)
    note = f"{micro} × {steps} accumulated × {copies} replicas"
    draft.put("batch_size", micro * steps * copies, *found, note=note)
    draft.put("gradient_accumulation_steps", steps, found[1])


def _precision(draft: Draft) -> None:
    """Weights are kept in `model.dtype`; with float32 accumulation there is a float32 copy too."""
    kind, copy = draft.text("model.dtype"), draft.get("optimizer.accumulate_grad_in_fp32")
    has_copy = copy is not None and copy.value is True
    if kind is not None and not has_copy and kind.value != "float32":
        kind = Found(
            key=kind.key, value=f"pure_{_SHORT.get(kind.value, kind.value)}", line=kind.line
        )
    note = "with float32 master weights" if has_copy else ""
    put_precision(draft, kind, note=note)


_SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def _model(draft: Draft) -> None:
    settings = draft.mapping("model.model_config")
    kind = next((_DENSE[key] for key in _DENSE if settings.get(key)), None)
    std = draft.number("model.init_method.std", "model.init_method.initializer_range")
    deviation = float(std.value) if std is not None else settings.get("initializer_range")
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
        draft.no_target("it has nanotron's own experts, which no model of transformers has.")
    elif kind is None:
        draft.no_target("its model is none that transformers knows; name a TARGET.")
    else:
        wanted = {key: settings.get(key) for key in _SETTINGS}
        draft.describe(
            kind,
            wanted | {"initializer_range": deviation},
            "nanotron divides the output projections' deviation by √(2 × layers); "
            f"transformers' {kind} does not.",
        )


READER = Reader(name="nanotron", title="nanotron", matches=_matches, read=_read)
