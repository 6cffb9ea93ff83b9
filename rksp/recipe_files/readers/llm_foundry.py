"""MosaicML's llm-foundry and Composer: YAML with `${variables.…}` and time strings."""

from __future__ import annotations

from rksp.ground.model import definite
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import betas, number, optimizer, precision, schedule
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import duration, put_steps
from rksp.recipe_files.table.reader import Marks, Reader, Row

_BETA2 = {"decoupled_adamw": 0.95}  # composer/optim/decoupled_weight_decay.py


def _betas(draft: Draft) -> None:
    """Set the defaults of `decoupled_*` (composer/optim, llmfoundry/optim), else torch's."""
    betas("optimizer.betas")(draft)
    found = draft.text("optimizer.name")
    name = found.value if found is not None else ""
    draft.default("adam_beta1", 0.9)
    draft.default("adam_beta2", 0.99 if "lion" in name else _BETA2.get(name, 0.999))


def _decay(draft: Draft) -> None:
    """Set the decay; Composer's decoupled optimizers subtract λ·θ, so torch's λ is theirs / η.

    Source: composer/optim/decoupled_weight_decay.py (Loshchilov and Hutter, 2019, algorithm 2).
    """
    found, name = draft.number("optimizer.weight_decay"), draft.text("optimizer.name")
    rate = draft.value("learning_rate")
    is_decoupled = name is not None and "decoupled" in name.value
    if found is None and is_decoupled and "adam" not in definite(name).value:
        draft.default("weight_decay", 0.0)  # of DecoupledSGDW and of the Lions of llm-foundry
    elif found is None:
        draft.default(
            "weight_decay", float(f"{1e-5 / rate:.6g}") if is_decoupled and rate else 0.01
        )
    elif not is_decoupled or not rate or not found.value:
        draft.put("weight_decay", found.value, found)
    else:
        text = f"{found.value:g} / {rate:g}: decoupled from the rate"
        draft.put("weight_decay", float(f"{found.value / rate:.6g}"), found, text=text)


def _clip(draft: Draft) -> None:
    kind = draft.text("algorithms.gradient_clipping.clipping_type")
    found = draft.number("algorithms.gradient_clipping.clipping_threshold")
    if found is not None and (kind is None or kind.value == "norm"):
        draft.put("max_grad_norm", found.value or None, found)
        return
    if kind is not None:
        draft.note(f"Gradients are clipped by {kind.value}, which rksp reads as no clipping.")
    draft.default("max_grad_norm", None)


def _fall(draft: Draft) -> None:
    """Set the end of the schedule (`t_max`) and its lowest rate (`alpha_f`)."""
    number(draft, "min_lr_ratio", ["scheduler.alpha_f"])
    draft.default("min_lr_ratio", 0.0)
    number(draft, "decay_power", ["scheduler.power"])
    if draft.value("schedule") == "polynomial":
        draft.default("decay_power", 2.0)
    end = draft.text("scheduler.t_max")
    if end is not None and end.value not in ("1dur", str(draft.value("max_steps"))):
        put_steps(draft, "decay_steps", end, "ba")
    milestones = draft.get("scheduler.milestones")
    if milestones is not None and isinstance(milestones.value, list):
        steps = [str(part).removesuffix("ba") for part in milestones.value]
        if all(step.isdigit() for step in steps):
            draft.put("decay_milestones", tuple(int(step) for step in steps), milestones)
    number(draft, "decay_factor", ["scheduler.gamma"])


_FRESH = {  # Hub id → model type and settings, for runs with `pretrained: false`
    "gpt2": ("gpt2", {}),
    "EleutherAI/gpt-neo-125M": (
        "gpt_neo",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
        },
    ),
}


def _model(draft: Draft) -> None:
    if draft.text("load_path") is not None and draft.true("load_weights_only") is not None:
        draft.start_trained()
    name = draft.text("model.name")
    kind = name.value if name is not None else ""
    if kind in ("hf_causal_lm", "hf_t5", "hf_prefix_lm"):
        base = draft.text("model.pretrained_model_name_or_path")
        trained = draft.get("model.pretrained")
        if base is None:
            return
        if trained is not None and trained.value is False:
            changes = draft.mapping("model.config_overrides")
            if base.value in _FRESH:
                kind, shape = _FRESH[base.value]
                note = "pretrained: false: it starts from random weights."
                draft.describe(kind, {**shape, **changes}, note)
            else:
                draft.no_target(
                    f"pretrained: false starts from random weights in the shape of {base.value}; "
                    "give that model's config.json as TARGET."
                )
            return
        draft.start_trained()
        draft.describe(base.value, draft.mapping("model.config_overrides"))
        return
    experts = draft.number("model.ffn_config.moe_num_experts")
    sizes = {key: draft.count(f"model.{key}") for key in ("d_model", "n_heads", "n_layers")}
    if kind != "mpt_causal_lm" or None in sizes.values():
        draft.no_target(f"transformers does not have its model {kind!r}; name a TARGET.")
    elif experts is not None and experts.value > 1:
        draft.no_target(f"it has {experts.value} experts, but transformers' mpt has none.")
    else:
        more = ("expansion_ratio", "max_seq_len", "vocab_size")
        draft.describe(
            "mpt",
            sizes | {key: draft.count(f"model.{key}") for key in more},
            "llm-foundry initializes by kaiming_normal_, transformers' mpt with a fixed std.",
            "transformers' mpt has only ALiBi, so learned positions are left out.",
        )


_STEPS = (
    Row("optimizer", "optimizer.name", optimizer),
    Row("learning_rate", "optimizer.lr"),
    _betas,
    Row("adam_epsilon", "optimizer.eps", default=1e-8),
    _decay,
    _clip,
    Row("sequence_length", "max_seq_len model.max_seq_len"),
    batch("device_train_microbatch_size", whole="global_train_batch_size"),
    Row("max_steps", "max_duration", duration),
    Row("schedule", "scheduler.name", schedule, "constant"),
    Row("warmup_steps", "scheduler.t_warmup", duration, 0),
    _fall,
)

READER = Reader(
    name="llm-foundry",
    title="llm-foundry",
    version="0.22.0",
    source="mosaicml/llm-foundry, llmfoundry/utils/{builders,config_utils}.py and "
    "llmfoundry/optim; mosaicml/composer 0.32.1",
    marks=(
        Marks(
            all="max_duration optimizer.lr model.name",
            some="tokenizer train_loader global_train_batch_size algorithms max_seq_len",
            least=2,
            none="model.use_pretrained model.pretrained_model_name",
        ),
    ),
    steps=(*_STEPS, Row("precision", "precision", precision, "bf16"), _model),
)


def _composer_model(draft: Draft) -> None:
    name = draft.text("model.name")
    base = draft.text("model.pretrained_model_name", "model.pretrained_model_name_or_path")
    starts = draft.get("model.use_pretrained")
    if name is not None and "bert" in name.value:
        draft.put("objective", "mlm", name)
    settings = draft.mapping("model.model_config")
    if base is not None and starts is not None and starts.value is True:
        draft.start_trained()
        draft.describe(base.value, settings)
    elif name is not None and name.value in ("mosaic_bert", "hf_bert"):
        notes = ["It starts from random weights."]
        if name.value == "mosaic_bert":
            notes.append("MosaicBERT has ALiBi and gated linear units; bert has neither.")
        draft.describe("bert", settings, *notes)
    elif name is not None:
        draft.no_target(f"{name.value!r} builds its own model; name the same model as TARGET.")


COMPOSER = Reader(
    name="composer",
    title="Composer",
    version="0.32.1",
    source="mosaicml/composer, composer/trainer and composer/optim; mosaicml/examples",
    marks=(
        Marks(
            all="max_duration",
            some=(
                "optimizer.lr optimizer.name scheduler.name global_train_batch_size "
                "device_train_microbatch_size algorithms train_dataset train_loader"
            ),
            least=2,
            none="optimizer.learning_rate",
        ),
    ),
    steps=(
        *_STEPS,
        Row("precision", "precision", precision, "fp16", "amp_fp16 on a GPU"),
        _composer_model,
    ),
)
