"""MosaicML's llm-foundry: YAML with `${variables.…}` and Composer's time strings.

Source of names and defaults: mosaicml/llm-foundry (scripts/train/yamls) and mosaicml/composer.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import put_optimizer, put_precision, put_schedule, put_steps
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.has("max_duration", "optimizer.lr", "model.name")


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer.name"))
    draft.take("learning_rate", "optimizer.lr")
    draft.take_betas("optimizer.betas")
    draft.take("adam_epsilon", "optimizer.eps")
    draft.default(adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8)
    _decay(draft)
    _clip(draft)
    draft.take("sequence_length", "max_seq_len", "model.max_seq_len")
    draft.take("batch_size", "global_train_batch_size")
    _accumulation(draft)
    put_steps(draft, "max_steps", draft.get("max_duration"), default_unit="")
    put_schedule(draft, draft.text("scheduler.name"))
    put_steps(draft, "warmup_steps", draft.get("scheduler.t_warmup"), default_unit="")
    draft.take("min_lr_ratio", "scheduler.alpha_f")
    draft.default(schedule="constant", min_lr_ratio=0.0)
    put_precision(draft, draft.text("precision"))
    draft.default(precision="fp32")
    _model(draft)


def _decay(draft: Draft) -> None:
    """Composer's decoupled optimizers subtract λ·θ a step, not η·λ·θ: torch's λ is theirs over η.

    Source: composer/optim/decoupled_weight_decay.py (Loshchilov and Hutter, 2019, algorithm 2).
    """
    found, name = draft.number("optimizer.weight_decay"), draft.text("optimizer.name")
    rate = draft.value("learning_rate")
    if found is None:
        return
    if name is None or "decoupled" not in name.value or not rate or not found.value:
        draft.put("weight_decay", found.value, found)
        return
    note = f"{found.value:g} / {rate:g}: decoupled from the rate"
    draft.put("weight_decay", float(f"{found.value / rate:.6g}"), found, note=note)


def _clip(draft: Draft) -> None:
    kind = draft.text("algorithms.gradient_clipping.clipping_type")
    found = draft.number("algorithms.gradient_clipping.clipping_threshold")
    if found is not None and (kind is None or kind.value == "norm"):
        draft.put("max_grad_norm", found.value or None, found)
        return
    if kind is not None:
        draft.note(f"Gradients are clipped by {kind.value}, which rksp reads as no clipping.")
    draft.default(max_grad_norm=None)


def _accumulation(draft: Draft) -> None:
    micro = draft.number("device_train_microbatch_size") if draft.devices else None
    if micro is not None:
        count = max(1, int(draft.value("batch_size")) // (int(micro.value) * draft.devices))
        draft.put("gradient_accumulation_steps", count, micro, note=f"on {draft.devices} devices")


def _model(draft: Draft) -> None:
    name = draft.text("model.name")
    kind = name.value if name is not None else ""
    if kind == "hf_causal_lm":
        base = draft.text("model.pretrained_model_name_or_path")
        if base is not None:
            draft.describe(base.value, draft.mapping("model.config_overrides"))
        return
    experts = draft.number("model.ffn_config.moe_num_experts")
    sizes = {key: draft.number(f"model.{key}") for key in ("d_model", "n_heads", "n_layers")}
    if kind != "mpt_causal_lm" or None in sizes.values():
        draft.no_target(f"its model {kind!r} is none that transformers knows; name a TARGET.")
    elif experts is not None and experts.value > 1:
        draft.no_target(f"it has {experts.value} experts, which transformers' mpt has not.")
    else:
        extra = {
            key: draft.number(f"model.{key}")
            for key in ("expansion_ratio", "max_seq_len", "vocab_size")
        }
        draft.describe(
            "mpt",
            {key: int(f.value) for key, f in (sizes | extra).items() if f is not None},
            "llm-foundry initializes by kaiming_normal_, transformers' mpt by a fixed deviation.",
            "transformers' mpt has ALiBi only; learned positions of llm-foundry are left out.",
        )


READER = Reader(name="llm-foundry", title="llm-foundry", matches=_matches, read=_read)
