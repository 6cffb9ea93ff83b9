"""Trainers in JAX: Levanter and MaxText.

Levanter has draccus YAML with `!include` and jmp precision strings; MaxText has base.yml, the files
on top of it, and `train.py base.yml key=value …`.
"""

from __future__ import annotations

import dataclasses
import re

from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import shape_of

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
    kind = draft.text_or("", "model.type").value
    if kind in _LENGTHS:
        draft.default("sequence_length", _LENGTHS[kind], f"of its {kind}")


def _batch(draft: Draft) -> None:
    found = draft.get("trainer.train_batch_size")
    if found is None or not isinstance(found.value, list):
        convert.number(draft, "batch_size", ["trainer.train_batch_size"])
        draft.default("batch_size", 512)
        return
    phases = [part for part in found.value if isinstance(part, dict) and "value" in part]
    if phases:
        ramp = tuple((max(0, int(part.get("start", 0))), int(part["value"])) for part in phases)
        draft.put("batch_ramp", ramp, found)
        draft.put("batch_size", ramp[-1][1], found, text="the last of its schedule")


def _steady(draft: Draft) -> None:
    """Set the decay; `stable` or `decay`, a share or steps, keeps the peak first: wsd.

    `stable` is the older key, `decay` the newer. The shape `inv` (1 / (1 + step)) is read as the
    exponential between the same rates, the nearest that rksp has.
    """
    total = int(draft.value("max_steps"))
    draft.default("warmup_steps", int(0.01 * total), f"0.01 of {total} steps", ("max_steps",))
    if draft.number("optimizer.cooldown", "optimizer.cycles") is not None:
        draft.note("optimizer.cooldown, optimizer.cycles: rksp reads one cycle without cooldown.")
    kind = draft.text_or("cosine", "optimizer.lr_schedule")
    shape = "exponential" if kind.value == "inv" else kind.value
    if shape == "inv_sqrt":
        _inverse_sqrt(draft, total)
    if kind.value == "inv":
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
    kind = draft.get("optimizer.lr_schedule")
    if total <= _TIMESCALE:
        text = f"inv_sqrt keeps the peak until step {_TIMESCALE}"
        draft.put("schedule", "constant", kind, text=text, after=("max_steps",))
        return
    draft.put("decay_steps", _TIMESCALE, kind)
    draft.note(f"inv_sqrt keeps the peak until step {_TIMESCALE}; rksp decays after warm-up.")


def _precision(draft: Draft) -> None:
    found = draft.text("trainer.mp")
    if found is None:
        return
    compute, kept = _COMPUTE.search(found.value), _PARAMETERS.search(found.value)
    if compute is None and kept is not None:  # p=f32 alone computes in float32 too
        compute = kept
    name = compute[1] if compute else found.value
    is_pure = compute is None or (kept is not None and kept[1] == name)
    named = dataclasses.replace(found, value=name)
    convert.put_precision(draft, named, is_pure=is_pure, text=found.value)


_OTHER_RUNS = ("initialize_from_checkpoint_path", "initialize_model_from_checkpoint_path")


def _model(draft: Draft) -> None:
    start = draft.text_or("none", "initialize_from_hf").value
    name = draft.text("hf_checkpoint", "model.hf_checkpoint")
    if draft.text(*_OTHER_RUNS) is not None:
        draft.names_weights = True
    if start.lower() not in ("false", "none"):
        draft.names_weights = True
        base = name.value if start.lower() == "true" and name is not None else start
        if base.lower() != "true":
            draft.describe(base, {}, "initialize_from_hf: it starts from that model's weights.")
            return
    settings = draft.mapping("model")
    kind = draft.text_or("", "model.type").value
    if kind not in ("gpt2", "llama"):
        if kind:
            draft.no_target(f"rksp cannot map its model type {kind!r}; name a TARGET.")
        return
    if start.lower() == "true":
        draft.no_target("initialize_from_hf: true does not name its weights; name them as TARGET.")
        return
    names = _GPT2 if kind == "gpt2" else _LLAMA
    changes = {names[key]: settings[key] for key in names if key in settings}
    longest = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    changes[longest] = draft.count("model.seq_len", "model.max_seq_len")
    own = ("scale_attn_by_inverse_layer_idx",) if kind == "gpt2" else ()
    for key in ("initializer_range", "tie_word_embeddings", *own):
        changes[key] = settings.get(key)
    draft.describe(kind, changes)


_SIZES = {
    "hidden_size": "base_emb_dim",
    "num_attention_heads": "base_num_query_heads",
    "num_key_value_heads": "base_num_kv_heads",
    "intermediate_size": "base_mlp_dim",
    "num_hidden_layers": "base_num_decoder_layers",
}


def _text_batch(draft: Draft) -> None:
    found = draft.number("per_device_batch_size")
    steps = draft.number("gradient_accumulation_steps")
    if found is None or float(found.value).is_integer():
        convert.put_batch(draft, found, steps, draft.devices or 1, 12)
        return
    count = max(1, round(found.value * (draft.devices or 1)))
    text = f"{found.value:g} a device × {draft.devices or '1 (assumed)'} devices"
    draft.put("batch_size", count, found, text=text, after=("devices",))


def _text_schedule(draft: Draft) -> None:
    total = int(draft.value("max_steps"))
    span = draft.number("learning_rate_schedule_steps")
    share = draft.number_or(0.1, "warmup_steps_fraction")
    length = int(span.value) if span is not None and span.value > 0 else total
    warm = int(share.value * length)
    text = f"{share.value:g} of {length} steps"
    draft.put("warmup_steps", warm, share, text=text, after=("max_steps",))
    if length != total:
        draft.put("decay_steps", max(1, length - warm), span, text="less the warm-up")
    last = draft.number_or(0.1, "wsd_decay_steps_fraction")
    if draft.value("schedule") == "wsd":
        draft.put("decay_steps", max(1, round(last.value * length)), last)


def _text_model(draft: Draft) -> None:
    if draft.text("load_parameters_path") is not None:
        draft.names_weights = True
    name = draft.text_or("default", "model_name").value
    block = draft.text_or("llama2", "decoder_block").value
    experts = draft.amount("num_experts", default=1)
    known = shape_of(name)
    if known is not None:
        draft.describe(*known)
        return
    if name != "default":
        draft.no_target(f"{name!r} is MaxText's name for a model; name the same model as TARGET.")
        return
    sizes = {ours: draft.count(key) for ours, key in _SIZES.items()}
    if None in sizes.values() or block not in ("llama2", "mistral"):
        draft.no_target("rksp cannot map its decoder block; name the same model as TARGET.")
        return
    if experts > 1:
        draft.no_target(f"it has {experts} experts; name the same model as TARGET.")
        return
    scale = draft.amount("global_parameter_scale", default=1)
    if scale != 1:
        draft.no_target(f"global_parameter_scale {scale} resizes the model; name a TARGET.")
        return
    sizes["vocab_size"] = draft.count("vocab_size")
    sizes["max_position_embeddings"] = draft.count("max_target_length")
    tied = draft.true("logits_via_embedding")
    draft.describe("llama", sizes | {"tie_word_embeddings": tied is not None})
