"""OLMo: times in steps, tokens or epochs, by suffix or by `scheduler.units`.

Source of names and defaults: allenai/OLMo, olmo/config.py.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import put_optimizer, put_precision, put_schedule, put_steps
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.has("max_duration", "optimizer.learning_rate", "model.d_model")


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer.name"))
    draft.take("learning_rate", "optimizer.learning_rate")
    draft.take_betas("optimizer.betas")
    draft.take("adam_epsilon", "optimizer.eps")
    draft.take("weight_decay", "optimizer.weight_decay")
    draft.take_clip("max_grad_norm")
    draft.take("sequence_length", "model.max_sequence_length")
    draft.take("batch_size", "global_train_batch_size")
    _steps(draft)
    put_schedule(draft, draft.text("scheduler.name"))
    units = draft.text("scheduler.units")
    unit = "tok" if units is not None and units.value == "tokens" else "ba"
    put_steps(draft, "warmup_steps", draft.get("scheduler.t_warmup"), default_unit=unit)
    draft.take("min_lr_ratio", "scheduler.alpha_f")
    put_precision(draft, draft.text("precision"))
    draft.default(
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-5,
        weight_decay=0.01,
        max_grad_norm=None,
        warmup_steps=100,
        min_lr_ratio=0.1,
        precision="fp32",
    )
    _model(draft)


def _steps(draft: Draft) -> None:
    """The first that can be counted: the duration, where the schedule ends, where the run stops."""
    put_steps(draft, "max_steps", draft.get("max_duration"))
    units = draft.text("scheduler.units")
    unit = "tok" if units is not None and units.value == "tokens" else "ba"
    for key, default_unit in (("scheduler.t_max", unit), ("stop_at", "ba")):
        found = draft.get(key)
        duration = draft.get("max_duration")
        if found is not None and (duration is None or str(duration.value).endswith("ep")):
            put_steps(draft, "max_steps", found, default_unit=default_unit)
            return


def _model(draft: Draft) -> None:
    width, heads = draft.number("model.d_model"), draft.number("model.n_heads")
    layers = draft.number("model.n_layers")
    settings = draft.mapping("model")
    activation = settings.get("activation_type")
    if None in (width, heads, layers) or activation != "swiglu" or not settings.get("rope"):
        draft.no_target("only OLMo's models with rotary positions and SwiGLU have an equivalent.")
        return
    norm = settings.get("layer_norm_type", "default")
    if norm == "rms" and settings.get("norm_after") and settings.get("attention_layer_norm"):
        kind = "olmo2"
    elif norm == "rms" and not settings.get("norm_after"):
        kind = "llama"
    elif norm in ("default", "low_precision") and not settings.get("layer_norm_with_affine"):
        kind = "olmo"
    else:
        draft.no_target(f"its combination of norms ({norm}) has no equivalent in transformers.")
        return
    inner = settings.get("mlp_hidden_size") or settings.get("mlp_ratio", 4) * int(width.value)
    notes = ["OLMo cuts its initial weights off at three deviations; transformers does not."]
    std = draft.number("model.init_std")
    if settings.get("init_fn") not in (None, "normal"):
        notes.append(f"Weights are initialized by {settings['init_fn']}, read as one deviation.")
    epsilon = draft.number("model.layer_norm_eps")
    has_epsilon = kind != "olmo" and epsilon is not None
    draft.describe(
        kind,
        {
            "hidden_size": int(width.value),
            "num_attention_heads": int(heads.value),
            "num_key_value_heads": settings.get("n_kv_heads") or int(heads.value),
            "num_hidden_layers": int(layers.value),
            "intermediate_size": int(inner) // 2,  # SwiGLU's two halves are counted together there
            "max_position_embeddings": settings.get("max_sequence_length"),
            "vocab_size": settings.get("embedding_size") or settings.get("vocab_size"),
            "tie_word_embeddings": settings.get("weight_tying", True),
            "initializer_range": float(std.value) if std is not None else 0.02,
            "rms_norm_eps": float(epsilon.value) if has_epsilon else None,
        },
        *notes,
    )


READER = Reader(name="olmo", title="OLMo", matches=_matches, read=_read)
