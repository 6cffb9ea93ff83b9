"""torchtitan: the TOML files it was started with until its configurations became Python.

Source of names and defaults: pytorch/torchtitan, torchtitan/config/job_config.py.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document, Found
from rksp.recipe_files.names import put_batch, put_optimizer, put_precision, put_schedule
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.syntax == "toml" and document.has("training", "optimizer.lr")


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer.name"))
    draft.take("learning_rate", "optimizer.lr")
    for name, key in (
        ("adam_beta1", "optimizer.beta1"),
        ("adam_beta2", "optimizer.beta2"),
        ("adam_epsilon", "optimizer.eps"),
        ("weight_decay", "optimizer.weight_decay"),
        ("sequence_length", "training.seq_len"),
        ("max_steps", "training.steps"),
        ("warmup_steps", "lr_scheduler.warmup_steps"),
        ("min_lr_ratio", "lr_scheduler.min_lr_factor"),
    ):
        draft.take(name, key)
    draft.take_clip("training.max_norm")
    _batch(draft)
    put_schedule(draft, draft.text("lr_scheduler.decay_type"))
    _precision(draft)
    draft.default(
        optimizer="adamw",
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-8,
        weight_decay=0.1,
        max_grad_norm=1.0,
        sequence_length=2048,
        max_steps=10_000,
        warmup_steps=200,
        schedule="linear",
        min_lr_ratio=0.0,
        precision="bf16",
    )
    share = draft.number("lr_scheduler.decay_ratio")
    if share is not None and share.value < 1:
        draft.note(f"The rate stays constant until the last {share.value:g} of the run.")
    name, flavor = draft.text("model.name"), draft.text("model.flavor")
    if name is not None:
        size = f" {flavor.value}" if flavor is not None else ""
        draft.no_target(
            f"{name.value}{size} is a flavor in torchtitan's code; name the same one as TARGET."
        )


def _batch(draft: Draft) -> None:
    whole = draft.number("training.global_batch_size")
    if whole is not None and whole.value > 0:
        draft.put("batch_size", whole.value, whole)
    else:
        put_batch(draft, draft.number("training.local_batch_size", "training.batch_size"), None)


def _precision(draft: Draft) -> None:
    """Mixed by FSDP unless the weights themselves are kept low."""
    weights = draft.text("training.dtype")
    if weights is not None and weights.value in ("bfloat16", "float16"):
        short = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[weights.value]
        put_precision(draft, Found(key=weights.key, value=short, line=weights.line))
    else:
        put_precision(draft, draft.text("training.mixed_precision_param"))


READER = Reader(name="torchtitan", title="torchtitan", matches=_matches, read=_read)
