"""Hugging Face `TrainingArguments` (5.x) as JSON or YAML, and who uses its names (LLaMA-Factory).

Source of names and defaults: transformers/training_args.py, read at 5.23.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import put_batch, put_optimizer, put_schedule, put_warmup_share
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader

_MARKS = (
    "per_device_train_batch_size",
    "lr_scheduler_type",
    "num_train_epochs",
    "output_dir",
    "adam_beta2",
    "warmup_ratio",
    "gradient_accumulation_steps",
)


def _matches(document: Document) -> bool:
    if document.has("base_model") or document.has("micro_batch_size"):
        return False
    return document.has("learning_rate") and any(document.has(mark) for mark in _MARKS)


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optim"))
    draft.take("learning_rate", "learning_rate")
    for name in ("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"):
        draft.take(name, name)
    draft.take_clip("max_grad_norm")
    draft.take(
        "sequence_length", "max_seq_length", "max_length", "cutoff_len", "block_size", "seq_length"
    )
    put_batch(
        draft,
        draft.number("per_device_train_batch_size"),
        draft.number("gradient_accumulation_steps"),
    )
    _steps(draft)
    put_schedule(draft, draft.text("lr_scheduler_type"))
    put_warmup_share(draft, _warmup(draft))
    _lowest(draft)
    _precision(draft)
    draft.default(
        optimizer="adamw",
        learning_rate=5e-5,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.0,
        max_grad_norm=1.0,
        schedule="linear",
        warmup_steps=0,
        min_lr_ratio=0.0,
        batch_size=8 * (draft.devices or 1),
        precision="fp32",
    )
    _model(draft)


def _steps(draft: Draft) -> None:
    found = draft.number("max_steps")
    if found is not None and found.value > 0:
        draft.put("max_steps", found.value, found)
        return
    epochs = draft.number("num_train_epochs")
    count = f"{epochs.value:g}" if epochs is not None else "3 (the default)"
    why = f"num_train_epochs: {count} epochs need the size of the data set; give --max-steps"
    draft.assume("max_steps", draft.value("max_steps"), why)


def _warmup(draft: Draft):
    """`warmup_steps` wins where it is positive; a share below one is allowed in either."""
    steps = draft.number("warmup_steps")
    return steps if steps is not None and steps.value > 0 else draft.number("warmup_ratio") or steps


def _lowest(draft: Draft) -> None:
    ratio = draft.number("lr_scheduler_kwargs.min_lr_rate")
    lowest, rate = draft.number("lr_scheduler_kwargs.min_lr"), draft.value("learning_rate")
    if ratio is not None:
        draft.put("min_lr_ratio", ratio.value, ratio)
    elif lowest is not None and rate:
        draft.put("min_lr_ratio", float(f"{lowest.value / rate:.6g}"), lowest)


def _precision(draft: Draft) -> None:
    pure = draft.get("pure_bf16")
    if pure is not None and pure.value is True:
        draft.put("precision", "bf16-pure", pure)
        return
    for name in ("bf16", "fp16"):
        found = draft.get(name)
        if found is not None and found.value is True:
            draft.put("precision", name, found)
            return


def _model(draft: Draft) -> None:
    base = draft.text("model_name_or_path", "config_name")
    settings = draft.mapping("model_config", "config", "model")
    if base is not None:
        draft.describe(base.value, {})
    elif "model_type" in settings:
        rest = {key: value for key, value in settings.items() if key != "model_type"}
        draft.describe(str(settings["model_type"]), rest)


READER = Reader(
    name="hugging-face", title="Hugging Face TrainingArguments", matches=_matches, read=_read
)
