"""Lightning's litgpt: YAML for `litgpt pretrain` and `litgpt finetune_full`.

Source of names and defaults: Lightning-AI/litgpt, litgpt/args.py and litgpt/pretrain.py.
"""

from __future__ import annotations

from rksp.recipe_files.document import Document
from rksp.recipe_files.names import put_optimizer, put_precision, put_ratio, put_steps
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader


def _matches(document: Document) -> bool:
    return document.has("train.global_batch_size", "train.micro_batch_size")


def _read(draft: Draft) -> None:
    if isinstance(getattr(draft.get("optimizer"), "value", None), str):
        put_optimizer(draft, draft.text("optimizer"))
    else:
        put_optimizer(draft, draft.text("optimizer.class_path"))
    draft.take("learning_rate", "optimizer.init_args.lr")
    draft.take_betas("optimizer.init_args.betas")
    draft.take("adam_epsilon", "optimizer.init_args.eps")
    draft.take("weight_decay", "optimizer.init_args.weight_decay")
    draft.take_clip("train.max_norm")
    draft.take("sequence_length", "train.max_seq_length")
    whole, micro = draft.number("train.global_batch_size"), draft.number("train.micro_batch_size")
    if whole is not None:
        draft.put("batch_size", whole.value, whole)
    if whole is not None and micro is not None and micro.value >= 1:
        devices = draft.devices or 1
        count = max(1, int(whole.value) // (int(micro.value) * devices))
        where = f"on {devices} devices" if draft.devices else "on 1 device (assumed)"
        draft.put("gradient_accumulation_steps", count, whole, micro, note=where)
    steps = draft.get("train.max_steps")
    if steps is not None:
        put_steps(draft, "max_steps", steps)
    else:
        put_steps(draft, "max_steps", draft.get("train.max_tokens"), default_unit="tok")
    draft.take("warmup_steps", "train.lr_warmup_steps")
    put_ratio(draft, draft.number("train.min_lr"))
    put_precision(draft, draft.text("precision"))
    draft.default(
        optimizer="adamw",
        learning_rate=1e-3,  # torch.optim.AdamW's own
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.01,
        max_grad_norm=None,
        schedule="cosine",
        precision="bf16-pure",
    )
    _model(draft)


def _model(draft: Draft) -> None:
    name = draft.text("model_name", "checkpoint_dir")
    if name is not None:
        draft.no_target(f"{name.value!r} is litgpt's name for its own model; name a TARGET.")


READER = Reader(name="litgpt", title="litgpt", matches=_matches, read=_read)
