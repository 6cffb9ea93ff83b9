"""nanoGPT: a Python file of assignments, read as a syntax tree and never run.

Source of names and defaults: karpathy/nanoGPT, train.py.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import put_precision
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader

_MARKS = ("max_iters", "lr_decay_iters", "n_layer", "block_size", "gradient_accumulation_steps")
_SHAPE = {"n_layer": 12, "n_head": 12, "n_embd": 768}


def _matches(document: Document) -> bool:
    return document.syntax == "python" and any(document.has(mark) for mark in _MARKS)


def _read(draft: Draft) -> None:
    for name, key in (
        ("learning_rate", "learning_rate"),
        ("adam_beta1", "beta1"),
        ("adam_beta2", "beta2"),
        ("weight_decay", "weight_decay"),
        ("sequence_length", "block_size"),
        ("max_steps", "max_iters"),
        ("warmup_steps", "warmup_iters"),
    ):
        draft.take(name, key)
    draft.take_clip("grad_clip")
    _batch(draft)
    draft.default(
        optimizer="adamw",
        learning_rate=6e-4,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-8,
        weight_decay=0.1,
        max_grad_norm=1.0,
        sequence_length=1024,
        max_steps=600_000,
        warmup_steps=2000,
        precision="bf16",
    )
    _schedule(draft)
    put_precision(draft, draft.text("dtype"))
    _model(draft)


def _batch(draft: Draft) -> None:
    """nanoGPT divides the accumulation by the number of devices: the product is the whole batch."""
    size, steps = draft.number("batch_size"), draft.number("gradient_accumulation_steps")
    micro = int(size.value) if size is not None else 12
    accumulated = int(steps.value) if steps is not None else 40
    if size is None and steps is None:
        draft.default(batch_size=micro * accumulated, gradient_accumulation_steps=accumulated)
        return
    note = f"{micro} × {accumulated} accumulated over all devices"
    draft.put("batch_size", micro * accumulated, size, steps, note=note)
    draft.put("gradient_accumulation_steps", accumulated, steps)


def _schedule(draft: Draft) -> None:
    falls, lowest = draft.get("decay_lr"), draft.number("min_lr")
    if falls is not None and falls.value is False:
        draft.put("schedule", "constant", falls)
        draft.default(min_lr_ratio=1.0)
        return
    draft.default(schedule="cosine")
    least, rate = 6e-5 if lowest is None else lowest.value, float(draft.value("learning_rate"))
    ratio = float(f"{min(1.0, least / rate):.6g}")
    if lowest is None:
        draft.default(min_lr_ratio=ratio)
    else:
        draft.put("min_lr_ratio", ratio, lowest, note=f"{least:g} / {rate:g}")


def _model(draft: Draft) -> None:
    shape = {}
    for key, default in _SHAPE.items():
        found = draft.number(key)
        shape[key] = int(found.value) if found is not None else default
    start = draft.text("init_from")
    if start is not None and start.value not in ("scratch", "resume"):
        draft.describe(start.value, {})
        return
    bias = draft.get("bias")
    notes = [] if bias is not None and bias.value else ["transformers' gpt2 has biases."]
    draft.describe("gpt2", shape | {"n_positions": int(draft.value("sequence_length"))}, *notes)


READER = Reader(name="nanogpt", title="nanoGPT", matches=_matches, read=_read)
