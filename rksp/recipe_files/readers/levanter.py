"""Stanford's Levanter: draccus YAML with `!include` and jmp precision strings."""

from __future__ import annotations

import re

from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.convert import clip, optimizer, put_precision, schedule, warmup_by
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row

_COMPUTE = re.compile(r"(?:^|,)c(?:ompute)?=([a-z0-9]+)")
_PARAMETERS = re.compile(r"(?:^|,)p(?:arams)?=([a-z0-9]+)")
_GPT2 = {"num_layers": "n_layer", "num_heads": "n_head", "hidden_dim": "n_embd"}
_TIMESCALE = 10_000
_LENGTHS = {"gpt2": 1024, "llama": 2048}
_LLAMA = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
}


def _length(draft: Draft) -> None:
    kind = draft.text("model.type")
    if kind is not None and kind.value in _LENGTHS:
        draft.default("sequence_length", _LENGTHS[kind.value], f"of its {kind.value}")


def _batch(draft: Draft) -> None:
    """Set the batch: a number, or a list of `{start, value}` (src/levanter/schedule.py)."""
    found = draft.get("trainer.train_batch_size")
    if found is None or not isinstance(found.value, list):
        if found is not None:
            draft.put("batch_size", definite(draft.number(found.key)).value, found)
        draft.default("batch_size", 512)
        return
    phases = [part for part in found.value if isinstance(part, dict) and "value" in part]
    if phases:
        ramp = tuple((max(0, int(part.get("start", 0))), int(part["value"])) for part in phases)
        draft.put("batch_ramp", ramp, found)
        draft.put("batch_size", ramp[-1][1], found, text="the last of its schedule")


def _weight_decay(draft: Draft) -> float:
    """Return the default; only Adam's is not zero (optim/config.py, optim/muon.py)."""
    return 0.1 if draft.value("optimizer") == "adamw" else 0.0


def _muon(draft: Draft) -> None:
    """Set the scale of Muon's update from `use_kimi_scaling` (optim/muon.py)."""
    found = draft.true("optimizer.use_kimi_scaling")
    if found is not None:
        draft.put("muon_scale", "match_rms_adamw", found)


def _steady(draft: Draft) -> None:
    """Set the decay; `stable` or `decay`, a share or steps, keeps the peak first: wsd.

    `stable` is the older key, `decay` the newer. The shape `inv` (1 / (1 + step)) is read as the
    exponential between the same rates, the nearest that rksp has.
    """
    total = int(draft.value("max_steps"))
    draft.default("warmup_steps", int(0.01 * total), f"0.01 of {total} steps", ("max_steps",))
    if draft.number("optimizer.cooldown", "optimizer.cycles") is not None:
        draft.note("optimizer.cooldown, optimizer.cycles: rksp reads one cycle without cooldown.")
    kind = draft.text("optimizer.lr_schedule")
    shape = "cosine" if kind is None else "exponential" if kind.value == "inv" else kind.value
    if shape == "inv_sqrt":
        _inverse_sqrt(draft, total)
    if kind is not None and kind.value == "inv":
        draft.put("schedule", "exponential", kind, text="inv, the nearest shape")
    rest = total - int(draft.value("warmup_steps"))
    decay, stable = draft.number("optimizer.decay"), draft.number("optimizer.stable")
    found = decay or stable
    if found is None or shape not in ("linear", "cosine", "exponential"):
        return
    given = round(found.value if found.value >= 1 else found.value * total)
    span = given if decay is not None else rest - given
    if 0 < span < rest:
        draft.put("decay_steps", span, found, text=f"{found.value:g} of {total} steps")
        draft.put("decay_shape", shape, kind)
        draft.put("schedule", "wsd", found, text="a plateau, then the decay")


def _inverse_sqrt(draft: Draft, total: int) -> None:
    """Set `inv_sqrt`: √(10000 / step), at most the peak, so constant until step 10,000."""
    kind = draft.get("optimizer.lr_schedule")
    if total <= _TIMESCALE:
        text = f"inv_sqrt keeps the peak until step {_TIMESCALE}"
        draft.put("schedule", "constant", kind, text=text, after=("max_steps",))
        return
    draft.put("decay_steps", _TIMESCALE, kind)
    draft.note(f"inv_sqrt keeps the peak until step {_TIMESCALE}; rksp decays after warm-up.")


def _precision(draft: Draft) -> None:
    """Set the precision; `p=f32,c=bfloat16` keeps float32 parameters, one word means both."""
    found = draft.text("trainer.mp")
    if found is None:
        return
    compute, kept = _COMPUTE.search(found.value), _PARAMETERS.search(found.value)
    if compute is None and kept is not None:  # p=f32 alone computes in float32 too
        compute = kept
    name = compute[1] if compute else found.value
    if compute is None or (kept is not None and kept[1] == name):
        name = {"bfloat16": "pure_bf16", "float16": "pure_fp16", "f16": "pure_fp16"}.get(name, name)
    put_precision(draft, Found(key=found.key, value=name, line=found.line), text=found.value)


def _adapters(draft: Draft) -> None:
    """Set the adapters from `lora.r` of `levanter.main.lora_lm` (src/levanter/lora.py)."""
    rank = draft.number("lora.r")
    if rank is None and not draft.document.has("lora"):
        return
    draft.put("peft", "lora", rank or draft.get("lora"))
    draft.put("lora_rank", rank.value if rank is not None else 8, rank)
    alpha = draft.number("lora.alpha")
    draft.put("lora_alpha", alpha.value if alpha is not None else 8.0, alpha)


_OTHER_RUNS = ("initialize_from_checkpoint_path", "initialize_model_from_checkpoint_path")


def _model(draft: Draft) -> None:
    start = draft.text("initialize_from_hf")
    name = draft.text("hf_checkpoint", "model.hf_checkpoint")
    if draft.text(*_OTHER_RUNS) is not None:
        draft.start_trained()
    if start is not None and start.value.lower() not in ("false", "none"):
        draft.start_trained()
        base = name.value if start.value.lower() == "true" and name is not None else start.value
        if base.lower() != "true":
            draft.describe(base, {}, "initialize_from_hf: it starts from that model's weights.")
            return
    settings = draft.mapping("model")
    kind = draft.text("model.type")
    if kind is None or kind.value not in ("gpt2", "llama"):
        if kind is not None:
            draft.no_target(f"rksp cannot map its model type {kind.value!r}; name a TARGET.")
        return
    if start is not None and start.value.lower() == "true":
        draft.no_target("initialize_from_hf: true does not name its weights; name them as TARGET.")
        return
    names = _GPT2 if kind.value == "gpt2" else _LLAMA
    changes = {names[key]: settings[key] for key in names if key in settings}
    longest = "n_positions" if kind.value == "gpt2" else "max_position_embeddings"
    changes[longest] = draft.count("model.seq_len", "model.max_seq_len")
    own = ("scale_attn_by_inverse_layer_idx",) if kind.value == "gpt2" else ()
    for key in ("initializer_range", "tie_word_embeddings", *own):
        changes[key] = settings.get(key)
    draft.describe(kind.value, changes, "The vocabulary is the tokenizer's; the default is used.")


_TRAINER = (
    "trainer.train_batch_size trainer.num_train_steps trainer.mp trainer.model_axis_size "
    "trainer.per_device_parallelism trainer.wandb trainer.tracker trainer.checkpointer "
    "trainer.axis_resources trainer.per_device_eval_parallelism"
)

READER = Reader(
    name="levanter",
    title="Levanter",
    version="00816d0f (2025)",
    source="stanford-crfm/levanter, src/levanter/optim/{config,muon}.py and "
    "src/levanter/trainer.py",
    marks=(
        Marks(some=_TRAINER, least=2, none="trainer.precision trainer.max_steps"),
        Marks(
            some=_TRAINER,
            all="optimizer",
            none="trainer.precision trainer.max_steps",
        ),
    ),
    steps=(
        _adapters,
        Row("optimizer", "optimizer.type", optimizer, "adamw"),
        _muon,
        Row("learning_rate", "optimizer.learning_rate", default=6e-4),
        Row("adam_beta1", "optimizer.beta1", default=0.9),
        Row("adam_beta2", "optimizer.beta2", default=0.95),
        Row("adam_epsilon", "optimizer.epsilon", default=1e-8),
        Row("weight_decay", "optimizer.weight_decay", default=_weight_decay),
        Row("max_grad_norm", "optimizer.max_grad_norm", clip, 1.0),
        Row("sequence_length", "train_seq_len model.seq_len model.max_seq_len"),
        _length,
        _batch,
        Row("max_steps", "trainer.num_train_steps", default=400_000),
        Row("schedule", "optimizer.lr_schedule", schedule, "cosine"),
        Row("warmup_steps", "optimizer.warmup_ratio optimizer.warmup", warmup_by(int)),
        _steady,
        Row("min_lr_ratio", "optimizer.min_lr_ratio", default=0.1),
        _precision,
        Row("precision", "", default="fp32"),
        _model,
    ),
)
