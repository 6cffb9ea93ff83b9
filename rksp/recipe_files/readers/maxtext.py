"""MaxText: base.yml, the files on top of it, and `train.py base.yml key=value …`."""

from __future__ import annotations

from rksp.recipe_files.readers.known_models import shape_of
from rksp.recipe_files.table.batch import put_batch
from rksp.recipe_files.table.convert import clip, optimizer, positive, schedule
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import precision_of
from rksp.recipe_files.table.reader import Marks, Reader, Row

_SHAPE = {
    "base_emb_dim": "hidden_size",
    "base_num_query_heads": "num_attention_heads",
    "base_num_kv_heads": "num_key_value_heads",
    "base_mlp_dim": "intermediate_size",
    "base_num_decoder_layers": "num_hidden_layers",
}
_ON_TOP = "the file extends another one (base_config) and does not repeat its values"


def _batch(draft: Draft) -> None:
    """Set the batch from sequences per device, which may be a fraction."""
    found, steps = (
        draft.number("per_device_batch_size"),
        draft.number("gradient_accumulation_steps"),
    )
    if found is None or float(found.value).is_integer():
        put_batch(draft, found, steps, draft.devices or 1, 12)
        return
    count = max(1, round(found.value * (draft.devices or 1)))
    text = f"{found.value:g} a device × {draft.devices or '1 (assumed)'} devices"
    draft.put("batch_size", count, found, text=text, after=("devices",))


def _schedule(draft: Draft) -> None:
    """Set warm-up and decay, shares of `learning_rate_schedule_steps` (by default the run)."""
    schedule(draft, "schedule", ["lr_schedule_type"])
    draft.default("schedule", "cosine")
    total = int(draft.value("max_steps"))
    span, share = (
        draft.number("learning_rate_schedule_steps"),
        draft.number("warmup_steps_fraction"),
    )
    length = int(span.value) if span is not None and span.value > 0 else total
    part = float(share.value) if share is not None else 0.1
    text = f"{part:g} of {length} steps"
    draft.put("warmup_steps", int(part * length), share, text=text, after=("max_steps",))
    if length != total:
        draft.put("decay_steps", max(1, length - int(part * length)), span, text="less the warm-up")
    decay = draft.number("wsd_decay_steps_fraction")
    if draft.value("schedule") == "wsd":
        last = float(decay.value) if decay is not None else 0.1
        draft.put("decay_steps", max(1, round(last * length)), decay)


def _precision(draft: Draft) -> None:
    """Set the precision from `dtype` (arithmetic) and `weight_dtype` (weights)."""
    dtype, weights = draft.text("dtype"), draft.text("weight_dtype")
    name = precision_of(dtype.value) if dtype is not None else "bf16"
    low = weights is not None and weights.value == "bfloat16"
    if dtype is not None or weights is not None:
        draft.put("precision", f"{name}-pure" if low else name, dtype or weights)


def _model(draft: Draft) -> None:
    if draft.text("load_parameters_path") is not None:
        draft.start_trained()
    name, block = draft.text("model_name"), draft.text("decoder_block")
    experts = draft.number("num_experts")
    known = shape_of(name.value) if name is not None else None
    if known is not None:
        draft.describe(*known)
        return
    if name is not None and name.value != "default":
        draft.no_target(
            f"{name.value!r} is MaxText's name for a model; name the same model as TARGET."
        )
        return
    sizes = {ours: draft.count(key) for key, ours in _SHAPE.items()}
    if None in sizes.values() or (block is not None and block.value not in ("llama2", "mistral")):
        draft.no_target("rksp cannot map its decoder block; name the same model as TARGET.")
        return
    if experts is not None and experts.value > 1:
        draft.no_target(f"it has {experts.value} experts; name the same model as TARGET.")
        return
    scale = draft.number("global_parameter_scale")
    if scale is not None and scale.value != 1:
        draft.no_target(f"global_parameter_scale {scale.value} resizes the model; name a TARGET.")
        return
    extra = {"vocab_size": "vocab_size", "max_position_embeddings": "max_target_length"}
    sizes |= {ours: draft.count(key) for ours, key in extra.items()}
    tied = draft.true("logits_via_embedding")
    draft.describe("llama", sizes | {"tie_word_embeddings": tied is not None})


def _base(draft: Draft) -> None:
    found = draft.text("base_config")
    if found is not None:
        draft.note(f"base_config: {_ON_TOP}; the defaults shown are base.yml's.")


_MARKS = (
    "per_device_batch_size base_emb_dim base_num_decoder_layers warmup_steps_fraction "
    "learning_rate_schedule_steps base_output_directory max_target_length decoder_block "
    "ici_fsdp_parallelism cosine_learning_rate_final_fraction base_config remat_policy "
    "dcn_data_parallelism gradient_clipping_threshold opt_type"
)

READER = Reader(
    name="maxtext",
    title="MaxText",
    version="000e9355 (2024)",
    source="AI-Hypercomputer/maxtext, MaxText/configs/base.yml and MaxText/maxtext_utils.py",
    marks=(Marks(some=_MARKS, least=2, none="per_device_train_batch_size"),),
    steps=(
        _base,
        Row("optimizer", "opt_type", optimizer, "adamw"),
        Row("learning_rate", "learning_rate", default=3e-5),
        Row("adam_beta1", "adam_b1", default=0.9),
        Row("adam_beta2", "adam_b2", default=0.95),
        Row("adam_epsilon", "adam_eps", default=1e-8),
        Row("weight_decay", "adam_weight_decay", default=0.1),
        Row("max_grad_norm", "gradient_clipping_threshold", clip, 1.0),
        Row("sequence_length", "max_target_length", default=2048),
        _batch,
        Row("max_steps", "steps", positive),
        Row(
            "max_steps",
            "learning_rate_schedule_steps",
            lambda d, n, k: None if d.knows(n) else positive(d, n, k),
            150_001,
        ),
        _schedule,
        Row(
            "min_lr_ratio",
            "cosine_learning_rate_final_fraction learning_rate_final_fraction",
            default=0.1,
        ),
        _precision,
        Row("precision", "", default="bf16"),
        _model,
    ),
)
