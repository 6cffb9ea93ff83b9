"""axolotl: one flat YAML around Hugging Face's trainer.

Source of names and defaults: axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas and trainer.py.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import put_batch, put_optimizer, put_schedule, put_warmup_share
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.has("base_model") and (
        document.has("micro_batch_size") or document.has("sequence_len")
    )


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer"))
    draft.take("learning_rate", "learning_rate")
    for name in ("adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"):
        draft.take(name, name)
    draft.take_clip("max_grad_norm")
    draft.take("sequence_length", "sequence_len")
    put_batch(draft, draft.number("micro_batch_size"), draft.number("gradient_accumulation_steps"))
    steps = draft.number("max_steps")
    if steps is not None:
        draft.put("max_steps", steps.value, steps)
    else:
        epochs = draft.number("num_epochs")
        count = f"{epochs.value:g}" if epochs is not None else "1"
        why = f"num_epochs: {count} epochs need the size of the data set; give --max-steps"
        draft.assume("max_steps", draft.value("max_steps"), why)
    put_schedule(draft, draft.text("lr_scheduler"))
    put_warmup_share(draft, draft.number("warmup_steps") or draft.number("warmup_ratio"))
    draft.take("min_lr_ratio", "cosine_min_lr_ratio")
    _precision(draft)
    draft.default(
        optimizer="adamw",
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.0,
        max_grad_norm=1.0,
        schedule="cosine",
        min_lr_ratio=0.0,
        warmup_steps=min(int(0.03 * int(draft.value("max_steps"))), 100),
        batch_size=draft.devices or 1,
        sequence_length=512,
        precision="fp32",
    )
    _model(draft)


def _precision(draft: Draft) -> None:
    for key, precision in (
        ("bfloat16", "bf16-pure"),
        ("float16", "fp16-pure"),
        ("bf16", "bf16"),
        ("fp16", "fp16"),
    ):
        found = draft.get(key)
        if found is None or found.value not in (True, "auto", "full"):
            continue
        note = "auto: bf16 where the device has it" if found.value == "auto" else ""
        draft.put(
            "precision", "bf16-pure" if found.value == "full" else precision, found, note=note
        )
        return


def _model(draft: Draft) -> None:
    base = draft.text("base_model")
    if base is None:
        return
    adapter, fresh = draft.text("adapter"), draft.get("reinit_weights")
    notes = []
    if adapter is not None:
        notes.append(f"It trains {adapter.value} adapters; rksp judges training of all weights.")
    if fresh is not None and fresh.value is True:
        notes.append("reinit_weights: it starts from random weights; give the model's config.json.")
    draft.describe(base.value, {}, *notes)


READER = Reader(name="axolotl", title="axolotl", matches=_matches, read=_read)
