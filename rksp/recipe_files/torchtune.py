"""torchtune: OmegaConf YAML whose parts name the class they build (`_component_`).

Source of names and defaults: pytorch/torchtune, recipes/configs; torch.optim for the optimizers.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document, Found
from rksp.recipe_files.names import put_batch, put_optimizer, put_precision, put_schedule
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.has("optimizer._component_")


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer._component_"))
    draft.take("learning_rate", "optimizer.lr")
    draft.take_betas("optimizer.betas")
    draft.take("adam_epsilon", "optimizer.eps")
    draft.take("weight_decay", "optimizer.weight_decay")
    draft.take_clip("clip_grad_norm")
    draft.take("sequence_length", "tokenizer.max_seq_len")
    put_batch(draft, draft.number("batch_size"), draft.number("gradient_accumulation_steps"))
    steps, epochs = draft.number("max_steps_per_epoch"), draft.number("epochs")
    if steps is not None:
        rounds = int(epochs.value) if epochs is not None else 1
        note = f"{steps.value} a pass × {rounds} passes"
        draft.put("max_steps", int(steps.value) * rounds, steps, epochs, note=note)
    elif epochs is not None:
        why = f"epochs: {epochs.value} epochs need the size of the data set; give --max-steps"
        draft.assume("max_steps", draft.value("max_steps"), why)
    put_schedule(draft, draft.text("lr_scheduler._component_"))
    draft.take("warmup_steps", "lr_scheduler.num_warmup_steps")
    _precision(draft)
    draft.default(
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.01 if draft.value("optimizer") == "adamw" else 0.0,
        max_grad_norm=None,
        schedule="cosine" if draft.document.find("lr_scheduler") else "constant",
        min_lr_ratio=0.0,
        warmup_steps=0,
        precision="fp32",
    )
    model = draft.text("model._component_")
    if model is not None:
        draft.no_target(f"{model.value} builds its own model; name the same one as TARGET.")


def _precision(draft: Draft) -> None:
    """`dtype: bf16` keeps the weights themselves in bf16: torchtune has no mixed precision."""
    found = draft.text("dtype")
    if found is not None:
        name = f"pure_{found.value}" if found.value in ("bf16", "fp16") else found.value
        put_precision(draft, Found(key=found.key, value=name, line=found.line))


READER = Reader(name="torchtune", title="torchtune", matches=_matches, read=_read)
