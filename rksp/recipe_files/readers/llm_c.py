"""llm.c: `train_gpt2cu` with one-letter flags, and `train_gpt2.py` with long ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rksp.recipe_files.readers.known_models import shape_of
from rksp.recipe_files.table.convert import clip, positive, precision, schedule
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row

# Depth of a descriptor such as d12 → width and heads (train_gpt2.cu, gpt2_set_hyperparameters).
_WIDTHS = {
    6: (384, 6),
    12: (768, 12),
    24: (1024, 16),
    36: (1280, 20),
    48: (1600, 25),
    60: (1920, 30),
}


def _batch(draft: Draft) -> None:
    """Set the batch; `-d` counts tokens over all devices, else one micro-batch per device."""
    tokens = draft.number("d", "total_batch_size")
    size = draft.number("b", "batch_size")
    length = int(draft.value("sequence_length"))
    micro = int(size.value) if size is not None else 4
    if tokens is not None and tokens.value > 0:
        count = max(1, int(tokens.value) // length)
        draft.put("batch_size", count, tokens, text=f"{tokens.value} tokens / {length}")
        copies = draft.devices or 1
        if draft.devices:
            text = f"{count} / ({micro} × {copies} replicas)"
            steps = max(1, count // (micro * copies))
            draft.put("gradient_accumulation_steps", steps, tokens, size, text=text)
        return
    copies = draft.devices or 1
    draft.put(
        "batch_size", micro * copies, size, text=f"{micro} × {copies} replicas", after=("devices",)
    )


def _is_python(draft: Draft) -> bool:
    return draft.document.program.endswith(".py")


def _either(python: Any, cuda: Any) -> Callable[[Draft], Any]:
    """Choose between the defaults of train_gpt2.py and those of train_gpt2.cu."""
    return lambda draft: python if _is_python(draft) else cuda


def _epoch(draft: Draft) -> None:
    if _is_python(draft):
        draft.default("max_steps", 10)
    if not draft.knows("max_steps"):
        draft.assume("max_steps", "one pass over data of unknown size; give --max-steps")


def _precision(draft: Draft) -> None:
    """Set the precision: bf16 by default, with float32 master weights unless `-w 0`."""
    precision(draft, "precision", ["dtype"])
    copies = draft.number("w")
    if copies is not None:
        draft.put("precision", "bf16" if copies.value else "bf16-pure", copies)
    draft.default("precision", "fp32" if _is_python(draft) else "bf16", "as compiled")


def _warmdown(draft: Draft) -> None:
    """Set the schedule of modded-nanogpt's Python trainer: a plateau, then linear decay."""
    found = draft.number("warmdown_iters")
    if found is not None:
        draft.put("schedule", "wsd", found, text="a plateau, then linear decay")
        draft.put("decay_steps", max(1, int(found.value)), found)
        draft.put("min_lr_ratio", 0.0, found)


def _model(draft: Draft) -> None:
    found = draft.text("e", "model")
    name = found.value if found is not None else ""
    known = shape_of(name)
    if known is not None:
        length = {"n_positions": int(draft.value("sequence_length"))}
        draft.describe(known[0], {**known[1], **length})
        return
    if not name.startswith("d") or not name[1:].isdigit() or int(name[1:]) not in _WIDTHS:
        if name.endswith(".bin"):
            draft.start_trained()
        draft.no_target(f"{name or 'the descriptor'} names a weight file; name a TARGET.")
        return
    width, heads = _WIDTHS[int(name[1:])]
    draft.describe(
        "gpt2",
        {"n_layer": int(name[1:]), "n_embd": width, "n_head": heads, "vocab_size": 50304,
         "n_positions": int(draft.value("sequence_length"))},
    )  # fmt: skip


READER = Reader(
    name="llm.c",
    title="llm.c",
    version="f1e2ace6 (2024)",
    source="karpathy/llm.c, train_gpt2.cu (error_usage) and the arguments of train_gpt2.py",
    marks=(
        Marks(program=r"^train_gpt2\w*cu$|^train_gpt2$|^train_gpt2_?fp32cu$"),
        Marks(
            some=(
                "input_bin num_iterations total_batch_size warmup_iters val_loss_every "
                "sequence_length learning_rate_decay_frac"
            ),
            least=3,
            syntax="shell",
        ),
    ),
    steps=(
        Row("optimizer", "", default="adamw"),
        Row("learning_rate", "l learning_rate", default=_either(1e-4, 3e-4)),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.95),
        Row("adam_epsilon", "", default=1e-8),
        Row("weight_decay", "c weight_decay", default=0.0),
        Row("max_grad_norm", "grad_clip", clip, 1.0),
        Row("sequence_length", "t sequence_length", default=_either(64, 1024)),
        _batch,
        Row("max_steps", "x num_iterations", positive),
        _epoch,
        Row("schedule", "k", schedule, "cosine"),
        Row("warmup_steps", "u warmup_iters", default=0),
        Row("min_lr_ratio", "q learning_rate_decay_frac", default=1.0),
        _warmdown,
        _precision,
        _model,
    ),
)
