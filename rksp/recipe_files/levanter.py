"""Stanford's Levanter: draccus YAML with `!include` and jmp precision strings.

Source of names and defaults: stanford-crfm/levanter, optim/config.py, optim/adam.py, trainer.py.
"""

from __future__ import annotations

import re

from rksp.recipe_files.document import Document, Found
from rksp.recipe_files.names import put_optimizer, put_precision, put_schedule, put_warmup_share
from rksp.recipe_files.origin import Draft
from rksp.recipe_files.reader import Reader

_COMPUTE = re.compile(r"(?:^|,)c(?:ompute)?=([a-z0-9]+)")
_PARAMETERS = re.compile(r"(?:^|,)p(?:arams)?=([a-z0-9]+)")
_GPT2 = {"num_layers": "n_layer", "num_heads": "n_head", "hidden_dim": "n_embd"}
_LENGTHS = {"gpt2": 1024, "llama": 2048}
_LLAMA = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
}


def _matches(document: Document) -> bool:
    return document.has("trainer.train_batch_size") or document.has("trainer.num_train_steps")


def _read(draft: Draft) -> None:
    put_optimizer(draft, draft.text("optimizer.type"))
    draft.take("learning_rate", "optimizer.learning_rate")
    for name, key in (
        ("adam_beta1", "beta1"),
        ("adam_beta2", "beta2"),
        ("adam_epsilon", "epsilon"),
        ("weight_decay", "weight_decay"),
        ("min_lr_ratio", "min_lr_ratio"),
    ):
        draft.take(name, f"optimizer.{key}")
    draft.take_clip("optimizer.max_grad_norm")
    draft.take("sequence_length", "model.seq_len", "model.max_seq_len", "train_seq_len")
    draft.take("batch_size", "trainer.train_batch_size")
    draft.take("max_steps", "trainer.num_train_steps")
    put_schedule(draft, draft.text("optimizer.lr_schedule"))
    put_warmup_share(draft, draft.number("optimizer.warmup", "optimizer.warmup_ratio"))
    _precision(draft)
    kind = draft.text("model.type")
    if kind is not None and kind.value in _LENGTHS:
        draft.default(sequence_length=_LENGTHS[kind.value])
    draft.default(
        optimizer="adamw",
        learning_rate=6e-4,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=1e-8,
        weight_decay=0.1,
        min_lr_ratio=0.1,
        max_grad_norm=1.0,
        schedule="cosine",
        precision="fp32",
    )
    if draft.knows("max_steps"):
        draft.default(warmup_steps=round(0.01 * int(draft.value("max_steps"))))
    _model(draft)


def _precision(draft: Draft) -> None:
    """`p=f32,c=bfloat16` keeps parameters in float32; a single word is used for both."""
    found = draft.text("trainer.mp")
    if found is None:
        return
    compute, kept = _COMPUTE.search(found.value), _PARAMETERS.search(found.value)
    name = compute[1] if compute else found.value
    if compute is None or (kept is not None and kept[1] == name):
        name = {"bfloat16": "pure_bf16", "float16": "pure_fp16", "f16": "pure_fp16"}.get(name, name)
    put_precision(draft, Found(key=found.key, value=name, line=found.line), note=found.value)


def _model(draft: Draft) -> None:
    settings = draft.mapping("model")
    kind = draft.text("model.type")
    if kind is None or kind.value not in ("gpt2", "llama"):
        if kind is not None:
            draft.no_target(f"its model type {kind.value!r} has no reader yet; name a TARGET.")
        return
    names = _GPT2 if kind.value == "gpt2" else _LLAMA
    changes = {names[key]: value for key, value in settings.items() if key in names}
    longest = "n_positions" if kind.value == "gpt2" else "max_position_embeddings"
    length = draft.number("model.seq_len", "model.max_seq_len")
    if length is not None:
        changes[longest] = int(length.value)
    for key in ("initializer_range", "tie_word_embeddings"):
        if key in settings:
            changes[key] = settings[key]
    if "scale_attn_by_inverse_layer_idx" in settings and kind.value == "gpt2":
        changes["scale_attn_by_inverse_layer_idx"] = settings["scale_attn_by_inverse_layer_idx"]
    draft.describe(kind.value, changes, "The vocabulary is the tokenizer's; the default is used.")


READER = Reader(name="levanter", title="Levanter", matches=_matches, read=_read)
