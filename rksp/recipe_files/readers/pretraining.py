"""OLMo, llm-foundry, Composer and nanotron: YAML that holds all of a pretraining run.

OLMo's times are steps, tokens or epochs, by suffix or by `scheduler.units`; Composer's have a
suffix, and MosaicML's files name their own values as `${variables.…}`. In nanotron's everything is
in the file, down to the parallelism.
"""

from __future__ import annotations

from rksp.ground.text import words
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import DECAY_SHAPES, shape_published


def _unit(draft: Draft) -> str:
    return "tok" if draft.text_or("", "scheduler.units").value == "tokens" else "ba"


def _olmo_steps(draft: Draft) -> None:
    whole = draft.get("max_duration")
    if whole is not None:
        convert.put_steps(draft, "max_steps", whole)
    else:
        draft.default("max_steps", 10_000)
    for key, unit in (("scheduler.t_max", _unit(draft)), ("stop_at", "ba")):
        found = draft.get(key)
        if found is not None and (whole is None or str(whole.value).endswith("ep")):
            convert.put_steps(draft, "max_steps", found, unit)
            return


def _olmo_warmup(draft: Draft) -> None:
    found = draft.get("scheduler.t_warmup")
    if found is not None:
        convert.put_steps(draft, "warmup_steps", found, _unit(draft))
    kind = draft.text_or("", "scheduler.name")
    if kind.value == "constant":
        draft.put("warmup_steps", 0, kind, text="constant ignores the warm-up")
    if kind.value == "cosine_linear_envelope":
        draft.note("The cosine is multiplied by a straight line; rksp reads the cosine alone.")
    draft.default("warmup_steps", 100)


def _olmo_fall(draft: Draft) -> None:
    found = draft.number("scheduler.t_max")
    if found is None or draft.document.find("max_duration") is None:
        return
    tokens = int(draft.value("batch_size")) * int(draft.value("sequence_length"))
    end = round(found.value / tokens) if _unit(draft) == "tok" else int(found.value)
    if abs(end - int(draft.value("max_steps"))) > 1:
        convert.put_decay_until(draft, end, found)


def _z_loss(draft: Draft) -> None:
    if draft.true("softmax_auxiliary_loss") is not None:
        convert.number(draft, "z_loss", ["auxiliary_loss_multiplier"])


def _olmo_start(draft: Draft) -> None:
    found = draft.text("load_path")
    if found is None:
        return
    if draft.true("reset_optimizer_state", "reset_trainer_state") is not None:
        draft.names_weights = True
        draft.note(f"load_path: it starts from {found.value}, which rksp does not read.")
        return
    draft.note(
        f"load_path: the run continues from {found.value}, which rksp does not read; "
        "it judges the start from fresh weights."
    )


def _olmo_model(draft: Draft) -> None:
    width, heads = draft.count("model.d_model"), draft.count("model.n_heads")
    layers = draft.count("model.n_layers")
    activation = draft.text_or("swiglu", "model.activation_type").value
    is_like = activation == "swiglu" and _has(draft, "rope")
    if width is None or heads is None or layers is None or not is_like:
        draft.no_target("only OLMo's models with rotary positions and SwiGLU have an equivalent.")
        return
    norm = draft.text_or("default", "model.layer_norm_type").value
    if norm == "rms" and _has(draft, "norm_after") and _has(draft, "attention_layer_norm"):
        kind = "olmo2"
    elif norm == "rms" and not _has(draft, "norm_after"):
        kind = "llama"
    elif norm in ("default", "low_precision") and not _has(draft, "layer_norm_with_affine"):
        kind = "olmo"
    else:
        draft.no_target(f"its combination of norms ({norm}) has no equivalent in transformers.")
        return
    ratio = draft.amount("model.mlp_ratio", default=4)
    inner = draft.amount("model.mlp_hidden_size", default=ratio * width)
    notes = ["OLMo truncates initial weights at three deviations; transformers does not."]
    std = draft.amount("model.init_std", default=0.02)
    initialized = draft.text_or("normal", "model.init_fn").value
    if initialized != "normal":
        notes.append(f"Weights are initialized by {initialized}, read as one deviation.")
    epsilon = None if kind == "olmo" else draft.number("model.layer_norm_eps")
    draft.describe(
        kind,
        convert.settings_in(draft.mapping("model"), _OLMO)
        | {
            "intermediate_size": int(inner) // 2,  # SwiGLU's two halves are counted together there
            "tie_word_embeddings": draft.false("model.weight_tying") is None,
            "initializer_range": float(std),
            "rms_norm_eps": None if epsilon is None else float(epsilon.value),
        },
        *notes,
    )


def _has(draft: Draft, key: str) -> bool:
    return draft.true(f"model.{key}") is not None


_OLMO = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "mlp_hidden_size",
    "max_position_embeddings": "max_sequence_length",
    "vocab_size": "embedding_size vocab_size",
}
_BETA2 = {"decoupled_adamw": 0.95}  # composer/optim/decoupled_weight_decay.py


def _betas(draft: Draft) -> None:
    convert.betas(draft, "optimizer.betas")
    name = draft.text_or("", "optimizer.name").value
    draft.default("adam_beta1", 0.9)
    draft.default("adam_beta2", 0.99 if "lion" in name else _BETA2.get(name, 0.999))


def _decay(draft: Draft) -> None:
    """Set the decay; Composer's decoupled optimizers subtract λ·θ, so torch's λ is theirs / η.

    Source: composer/optim/decoupled_weight_decay.py (Loshchilov and Hutter, 2019, algorithm 2).
    """
    found, name = draft.number("optimizer.weight_decay"), draft.text_or("", "optimizer.name").value
    rate = draft.value("learning_rate") if "decoupled" in name else None
    if found is None and "decoupled" in name and "adam" not in name:
        draft.default("weight_decay", 0.0)  # of DecoupledSGDW and of the Lions of llm-foundry
    elif found is None:
        draft.default("weight_decay", float(f"{1e-5 / rate:.6g}") if rate else 0.01)
    elif not rate or not found.value:
        draft.put("weight_decay", found.value, found)
    else:
        text = f"{found.value:g} / {rate:g}: decoupled from the rate"
        draft.put("weight_decay", float(f"{found.value / rate:.6g}"), found, text=text)


def _fall(draft: Draft) -> None:
    if draft.value("schedule") == "polynomial":
        draft.default("decay_power", 2.0)
    end = draft.text("scheduler.t_max")
    if end is not None and end.value not in ("1dur", str(draft.value("max_steps"))):
        convert.put_steps(draft, "decay_steps", end, "ba")
    milestones = draft.get("scheduler.milestones")
    if milestones is not None and isinstance(milestones.value, list):
        steps = [str(part).removesuffix("ba") for part in milestones.value]
        if all(step.isdigit() for step in steps):
            draft.put("decay_milestones", tuple(int(step) for step in steps), milestones)


def _foundry_model(draft: Draft) -> None:
    if draft.text("load_path") is not None and draft.true("load_weights_only") is not None:
        draft.names_weights = True
    kind = draft.text_or("", "model.name").value
    if kind in ("hf_causal_lm", "hf_t5", "hf_prefix_lm"):
        _hugging_face_model(draft)
        return
    experts = draft.amount("model.ffn_config.moe_num_experts", default=0)
    sizes = {key: draft.count(f"model.{key}") for key in ("d_model", "n_heads", "n_layers")}
    if kind != "mpt_causal_lm" or None in sizes.values():
        draft.no_target(f"transformers does not have its model {kind!r}; name a TARGET.")
    elif experts > 1:
        draft.no_target(f"it has {experts} experts, but transformers' mpt has none.")
    else:
        more = ("expansion_ratio", "max_seq_len", "vocab_size")
        draft.describe(
            "mpt",
            sizes | {key: draft.count(f"model.{key}") for key in more},
            "llm-foundry initializes by kaiming_normal_, transformers' mpt with a fixed std.",
            "transformers' mpt has only ALiBi, so learned positions are left out.",
        )


def _hugging_face_model(draft: Draft) -> None:
    base = draft.text("model.pretrained_model_name_or_path")
    trained = draft.get("model.pretrained")
    if base is None:
        return
    changes = draft.mapping("model.config_overrides")
    if trained is None or trained.value is not False:
        draft.names_weights = True
        draft.describe(base.value, changes)
    elif (known := shape_published(base.value)) is not None:
        kind, shape = known
        note = "pretrained: false: it starts from random weights."
        draft.describe(kind, {**shape, **changes}, note)
    else:
        draft.no_target(
            f"pretrained: false starts from random weights in the shape of {base.value}; "
            "give that model's config.json as TARGET."
        )


_BERT = words(
    "hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings "
    "vocab_size hidden_act hidden_dropout_prob attention_probs_dropout_prob initializer_range"
)


def _composer_model(draft: Draft) -> None:
    name = draft.text("model.name")
    base = draft.text("model.pretrained_model_name", "model.pretrained_model_name_or_path")
    starts = draft.get("model.use_pretrained")
    if name is not None and "bert" in name.value:
        labels = draft.number("model.num_labels")
        draft.put("objective", "mlm" if labels is None else "classification", labels or name)
    stated = draft.mapping("model.model_config")
    settings = {key: stated.get(key) for key in _BERT}
    if base is not None and starts is not None and starts.value is True:
        draft.names_weights = True
        draft.describe(base.value, settings)
    elif name is not None and name.value in ("mosaic_bert", "hf_bert"):
        notes = ["It starts from random weights."]
        if name.value == "mosaic_bert":
            notes.append("MosaicBERT has ALiBi and gated linear units; bert has neither.")
        draft.describe("bert", settings, *notes)
    elif name is not None:
        draft.no_target(f"{name.value!r} builds its own model; name the same model as TARGET.")


_NANOTRON = "optimizer.learning_rate_scheduler"
_DENSE = {"is_llama_config": "llama", "is_qwen2_config": "qwen2", "is_starcoder2_config": None}
_SETTINGS = words(
    "hidden_act hidden_size intermediate_size max_position_embeddings num_attention_heads "
    "num_hidden_layers num_key_value_heads rms_norm_eps tie_word_embeddings vocab_size"
)
_MAMBA = {"hidden_size": "d_model", "num_hidden_layers": "num_hidden_layers",
          "vocab_size": "vocab_size"}  # fmt: skip
_MAMBA_STATE = {"state_size": "d_state", "conv_kernel": "d_conv", "expand": "expand"}


def _nanotron_fall(draft: Draft) -> None:
    """Set the decay: from `lr_decay_starting_step` (or the warm-up's end) for `lr_decay_steps`.

    A later start makes it a warm-up, a plateau and a fall (src/nanotron/helpers.py).
    """
    start = draft.number(f"{_NANOTRON}.lr_decay_starting_step")
    span = draft.number(f"{_NANOTRON}.lr_decay_steps")
    style = draft.text_or("linear", f"{_NANOTRON}.lr_decay_style")
    total, warm = int(draft.value("max_steps")), int(draft.value("warmup_steps"))
    if start is not None and start.value > warm:
        shape = DECAY_SHAPES.get(style.value, "linear")
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


def _nanotron_style(draft: Draft) -> None:
    found = draft.text(f"{_NANOTRON}.lr_decay_style")
    if found is not None and found.value == "1-sqrt":
        draft.put("schedule", "wsd", found, text="1-sqrt")
        draft.put("decay_shape", "sqrt", found)
        warm = int(draft.value("warmup_steps"))
        draft.put("decay_steps", max(1, int(draft.value("max_steps")) - warm), found)
    else:
        convert.schedule(draft, "schedule", [f"{_NANOTRON}.lr_decay_style"])
    draft.default("schedule", "linear")


def _nanotron_precision(draft: Draft) -> None:
    """Set the precision from `model.dtype`; float32 accumulation adds a float32 copy."""
    kind, copy = draft.text("model.dtype"), draft.true("optimizer.accumulate_grad_in_fp32")
    if kind is None:
        draft.default("precision", "bf16" if copy is not None else "bf16-pure", "dtype bfloat16")
        return
    text = "" if copy is None else "with float32 master weights"
    convert.put_precision(draft, kind, is_pure=copy is None, text=text)


def _nanotron_model(draft: Draft) -> None:
    mup = draft.document.find("model.init_method.use_mup")  # which is listed with what it changes
    settings = draft.mapping("model.model_config")
    kind = next((_DENSE[key] for key in _DENSE if settings.get(key)), None)
    std = draft.number("model.init_method.std", "model.init_method.initializer_range")
    deviation = settings.get("initializer_range") if std is None else float(std.value)
    start = draft.text("model.init_method.path")
    if start is not None:
        draft.names_weights = True
        draft.note(f"It starts from the weights in {start.value}, which rksp does not read.")
    resumed = draft.text("checkpoints.resume_checkpoint_path")
    if resumed is not None and draft.false("checkpoints.load_optimizer") is not None:
        draft.names_weights = True
    if settings.get("is_mamba_config"):
        state = draft.mapping("model.model_config.ssm_cfg")
        sizes = convert.settings_in(settings, _MAMBA) | convert.settings_in(state, _MAMBA_STATE)
        draft.describe("mamba", sizes | {"initializer_range": deviation})
    elif isinstance(settings.get("moe_config"), dict):
        draft.no_target("it has nanotron's own experts, which no transformers model has.")
    elif kind is None:
        draft.no_target("transformers does not have its model; name a TARGET.")
    else:
        wanted = {key: settings.get(key) for key in _SETTINGS}
        notes = [] if mup is not None and mup.value is True else [
            "nanotron divides the output projections' deviation by √(2 × layers); "
            f"transformers' {kind} does not.",
        ]  # fmt: skip
        draft.describe(kind, wanted | {"initializer_range": deviation}, *notes)
