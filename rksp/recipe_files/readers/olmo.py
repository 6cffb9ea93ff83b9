"""OLMo: times in steps, tokens or epochs, by suffix or by `scheduler.units`."""

from __future__ import annotations

from rksp.recipe_files.table.convert import (
    betas,
    clip,
    number,
    optimizer,
    precision,
    put_decay_until,
    schedule,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import put_steps
from rksp.recipe_files.table.reader import Marks, Reader, Row


def _unit(draft: Draft) -> str:
    units = draft.text("scheduler.units")
    return "tok" if units is not None and units.value == "tokens" else "ba"


def _steps(draft: Draft) -> None:
    """Set the length from the first usable key: duration, end of the schedule, stop of the run."""
    whole = draft.get("max_duration")
    if whole is not None:
        put_steps(draft, "max_steps", whole)
    else:
        draft.default("max_steps", 10_000)
    for key, unit in (("scheduler.t_max", _unit(draft)), ("stop_at", "ba")):
        found = draft.get(key)
        if found is not None and (whole is None or str(whole.value).endswith("ep")):
            put_steps(draft, "max_steps", found, unit)
            return


def _warmup(draft: Draft) -> None:
    found = draft.get("scheduler.t_warmup")
    if found is not None:
        put_steps(draft, "warmup_steps", found, _unit(draft))
    kind = draft.text("scheduler.name")
    if kind is not None and kind.value == "constant":
        draft.put("warmup_steps", 0, kind, text="constant ignores the warm-up")
    if kind is not None and kind.value == "cosine_linear_envelope":
        draft.note("The cosine is multiplied by a straight line; rksp reads the cosine alone.")
    draft.default("warmup_steps", 100)


def _fall(draft: Draft) -> None:
    """Note a schedule that ends before or after the run (`t_max`, olmo/optim.py)."""
    found = draft.number("scheduler.t_max")
    if found is None or draft.document.find("max_duration") is None:
        return
    tokens = int(draft.value("batch_size")) * int(draft.value("sequence_length"))
    end = round(found.value / tokens) if _unit(draft) == "tok" else int(found.value)
    if abs(end - int(draft.value("max_steps"))) > 1:
        put_decay_until(draft, end, found)


def _start(draft: Draft) -> None:
    """Note `load_path`: a checkpoint, only its weights with `reset_optimizer_state`."""
    found = draft.text("load_path")
    if found is None:
        return
    if draft.true("reset_optimizer_state", "reset_trainer_state") is not None:
        draft.start_trained()
        draft.note(f"load_path: it starts from {found.value}, which rksp does not read.")
        return
    draft.note(
        f"load_path: the run continues from {found.value}, which rksp does not read; "
        "it judges the start from fresh weights."
    )


def _model(draft: Draft) -> None:
    width, heads = draft.count("model.d_model"), draft.count("model.n_heads")
    layers = draft.count("model.n_layers")
    settings = draft.mapping("model")
    activation = settings.get("activation_type", "swiglu")
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
    inner = settings.get("mlp_hidden_size") or settings.get("mlp_ratio", 4) * width
    notes = ["OLMo truncates initial weights at three deviations; transformers does not."]
    std = draft.amount("model.init_std", default=0.02)
    if settings.get("init_fn") not in (None, "normal"):
        notes.append(f"Weights are initialized by {settings['init_fn']}, read as one deviation.")
    epsilon = draft.amount("model.layer_norm_eps")
    has_epsilon = kind != "olmo" and epsilon is not None
    draft.describe(
        kind,
        {
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": settings.get("n_kv_heads") or heads,
            "num_hidden_layers": layers,
            "intermediate_size": int(inner) // 2,  # SwiGLU's two halves are counted together there
            "max_position_embeddings": settings.get("max_sequence_length"),
            "vocab_size": settings.get("embedding_size") or settings.get("vocab_size"),
            "tie_word_embeddings": settings.get("weight_tying", True),
            "initializer_range": float(std),
            "rms_norm_eps": float(epsilon) if has_epsilon else None,
        },
        *notes,
    )


READER = Reader(
    name="olmo",
    title="OLMo",
    version="0.6.0",
    source="allenai/OLMo, olmo/config.py and olmo/optim.py",
    marks=(Marks(all="max_duration optimizer.learning_rate model.d_model"),),
    steps=(
        Row("optimizer", "optimizer.name", optimizer, "lion"),
        Row("learning_rate", "optimizer.learning_rate", default=1e-4),
        betas("optimizer.betas"),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.95),
        Row("adam_epsilon", "optimizer.eps", default=1e-5),
        Row("weight_decay", "optimizer.weight_decay", default=0.01),
        Row("max_grad_norm", "max_grad_norm", clip, None),
        Row("sequence_length", "model.max_sequence_length", default=1024),
        Row("batch_size", "global_train_batch_size", default=512),
        _steps,
        Row("schedule", "scheduler.name", schedule, "cosine"),
        _warmup,
        _fall,
        Row("min_lr_ratio", "scheduler.alpha_f", default=0.1),
        lambda draft: (
            draft.true("softmax_auxiliary_loss")
            and number(draft, "z_loss", ["auxiliary_loss_multiplier"])
        ),
        Row("precision", "precision", precision, "fp32"),
        _start,
        _model,
    ),
)
