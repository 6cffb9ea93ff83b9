"""axolotl: one flat YAML around Hugging Face's trainer."""

from __future__ import annotations

from typing import Any

from rksp.recipe_files.readers.hugging_face import WRITTEN, ignores_warmup
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    clip,
    lora,
    optimizer,
    positive,
    put_warmup,
    schedule,
    stated_objective,
    warmup_share,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import epochs
from rksp.recipe_files.table.reader import Marks, Reader, Row

_ADAPTERS: dict[str, Any] = {
    "rank": "lora_r",
    "alpha": "lora_alpha",
    "targets": "lora_target_modules",
}


def _warmup(draft: Draft) -> None:
    """Set the warm-up, rounded down; one step becomes two (core/builders/base.py)."""
    if ignores_warmup(draft, "lr_scheduler"):
        return
    found = draft.number("warmup_steps")
    found = found if found is not None else draft.number("warmup_ratio")
    if found is not None:
        put_warmup(draft, found, int)
    if found is not None and draft.value("warmup_steps") == 1:
        rests = ("max_steps",) if found.value < 1 else ()
        draft.put("warmup_steps", 2, found, text="one step becomes two", after=rests)


def _fall(draft: Draft) -> None:
    """Set the decay; `cosine_constant_lr_ratio` ends it early (axolotl/utils/schedulers.py)."""
    share = draft.number("cosine_constant_lr_ratio")
    if share is None or draft.number("cosine_min_lr_ratio") is None:
        return
    total = int(draft.value("max_steps"))
    span = max(1, int(share.value * total) - int(draft.value("warmup_steps")))
    text = f"{share.value:g} of {total} steps less the warm-up"
    draft.put("decay_steps", span, share, text=text, after=("max_steps",))


def _precision(draft: Draft) -> None:
    """Set the precision; `bf16: true` loads the weights in bf16 (`cfg.torch_dtype`, utils/config).

    FSDP and DeepSpeed keep a float32 copy of them (accelerate), and adapters are float32 (peft).
    """
    kept = draft.get("fsdp", "fsdp_config", "deepspeed")
    is_mixed = kept is not None or draft.value("peft") != "none"
    for key, short in (
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("bf16", "bf16"),
        ("fp16", "fp16"),
    ):
        found = draft.get(key)
        if found is None or str(found.value).lower() not in ("true", "auto", "full"):
            continue
        is_pure = key in ("bfloat16", "float16") or str(found.value) == "full" or not is_mixed
        text = "auto: bf16 where the device has it" if found.value == "auto" else ""
        draft.put("precision", f"{short}-pure" if is_pure else short, found, text=text)
        return
    if draft.false("bf16") is None:
        draft.default("precision", "bf16" if is_mixed else "bf16-pure", "bf16 is auto")


def _muon(draft: Draft) -> None:
    """Set the scale of Muon's update from `optim_args` (contribs/mit/muon/dist_muon.py)."""
    found = draft.text("optim_args.adjust_lr")
    if found is not None and found.value == "rms_norm":
        draft.put("muon_scale", "match_rms_adamw", found)


def _objective(draft: Draft) -> None:
    stated_objective("rl", ebft="other")(draft)
    rewards = draft.true("reward_model", "process_reward_model")
    if rewards is not None:
        draft.put("objective", "reward", rewards)


def _model(draft: Draft) -> None:
    base = draft.text("base_model")
    if base is None:
        return
    notes = []
    if draft.true("reinit_weights") is not None:
        notes.append("reinit_weights: it starts from random weights; give the model's config.json.")
    else:
        draft.start_trained()
    draft.describe(base.value, draft.mapping("overrides_of_model_config"), *notes)


READER = Reader(
    name="axolotl",
    written=WRITTEN,
    title="axolotl",
    version="0.19.0",
    source="axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas and core/builders/base.py",
    marks=(
        Marks(
            all="base_model",
            some="micro_batch_size sequence_len datasets adapter sample_packing",
        ),
    ),
    steps=(
        lora("load_in_4bit", "adapter=qlora", kind="qlora", **_ADAPTERS),
        lora("adapter=lora", **_ADAPTERS),
        Row("optimizer", "optimizer", optimizer, "adamw"),
        _muon,
        Row("learning_rate", "learning_rate"),
        Row("adam_beta1", "adam_beta1", default=0.9),
        Row("adam_beta2", "adam_beta2", default=0.999),
        Row("adam_epsilon", "adam_epsilon", default=1e-8),
        Row("weight_decay", "weight_decay", default=0.0),
        Row("max_grad_norm", "max_grad_norm", clip, 1.0),
        Row("sequence_length", "sequence_len", default=512),
        batch("micro_batch_size", "gradient_accumulation_steps", default=1),
        Row("max_steps", "max_steps", positive),
        epochs("num_epochs", 1),
        Row("schedule", "lr_scheduler", schedule, "cosine"),
        _warmup,
        warmup_share(0.03, most=100),
        Row("min_lr_ratio", "cosine_min_lr_ratio", default=0.0),
        _fall,
        _precision,
        Row("precision", "", default="fp32"),
        _objective,
        _model,
    ),
)
