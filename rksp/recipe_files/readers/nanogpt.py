"""nanoGPT: a Python file of assignments, read as a syntax tree and never run."""

from __future__ import annotations

from rksp.recipe_files.table.convert import clip, precision, put_decay_until
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row

_SHAPE = {"n_layer": 12, "n_head": 12, "n_embd": 768}
_CHARACTERS = 65  # of tiny Shakespeare (data/shakespeare_char/prepare.py)


def _batch(draft: Draft) -> None:
    """Set the batch; nanoGPT divides the accumulation by the devices, so it counts once."""
    size, steps = draft.number("batch_size"), draft.number("gradient_accumulation_steps")
    micro = int(size.value) if size is not None else 12
    accumulated = int(steps.value) if steps is not None else 40
    text = f"{micro} × {accumulated} accumulated over all devices"
    draft.put("batch_size", micro * accumulated, size, steps, text=text)
    draft.put("gradient_accumulation_steps", accumulated, steps)


def _schedule(draft: Draft) -> None:
    """Set the schedule; with `decay_lr = False` it is constant and without warm-up."""
    fixed, lowest = draft.false("decay_lr"), draft.number("min_lr")
    if fixed is not None:
        draft.put("schedule", "constant", fixed)
        draft.put("warmup_steps", 0, fixed, text="decay_lr off means no warm-up either")
        draft.default("min_lr_ratio", 1.0)
        return
    draft.default("schedule", "cosine")
    warm = draft.number("warmup_iters")
    if warm is not None:
        draft.put("warmup_steps", warm.value, warm)
    draft.default("warmup_steps", 2000)
    least, rate = 6e-5 if lowest is None else lowest.value, float(draft.value("learning_rate"))
    ratio = float(f"{min(1.0, least / rate):.6g}")
    draft.put("min_lr_ratio", ratio, lowest, text=f"{least:g} / {rate:g}")
    end = draft.number("lr_decay_iters")
    count = int(end.value) if end is not None else 600_000
    if count != draft.value("max_steps"):
        put_decay_until(draft, count, end)


def _model(draft: Draft) -> None:
    shape = {key: draft.count(key, default=usual) for key, usual in _SHAPE.items()}
    start = draft.text("init_from")
    if start is not None and start.value not in ("scratch", "resume"):
        draft.start_trained()
        name = f"openai-community/{start.value}"
        draft.describe(name, {}, "init_from: it starts from that model's weights.")
        return
    if start is not None and start.value == "resume":
        draft.note("init_from: it resumes a checkpoint in out_dir, which rksp does not read.")
    bias = draft.true("bias")
    notes = [] if bias is not None else ["transformers' gpt2 has biases."]
    data = draft.text("dataset")
    if data is not None and data.value.endswith("_char"):
        shape["vocab_size"] = _CHARACTERS
        notes.append(f"{data.value} has {_CHARACTERS} characters (meta.pkl, which is not opened).")
    else:
        shape["vocab_size"] = 50304
    draft.describe("gpt2", shape | {"n_positions": int(draft.value("sequence_length"))}, *notes)


READER = Reader(
    name="nanogpt",
    written={"warmup_steps": "warmup_iters"},
    title="nanoGPT",
    version="3adf61e1 (2024)",
    source="karpathy/nanoGPT, train.py, read in copies of it",
    marks=(
        Marks(
            some=(
                "max_iters lr_decay_iters n_layer block_size init_from dataset "
                "gradient_accumulation_steps eval_iters warmup_iters learning_rate"
            ),
            least=2,
            none="Hyperparameters",
            syntax="python",
        ),
    ),
    steps=(
        Row("optimizer", "", default="adamw"),
        Row("learning_rate", "learning_rate", default=6e-4),
        Row("adam_beta1", "beta1", default=0.9),
        Row("adam_beta2", "beta2", default=0.95),
        Row("adam_epsilon", "", default=1e-8),
        Row("weight_decay", "weight_decay", default=0.1),
        Row("max_grad_norm", "grad_clip", clip, 1.0),
        Row("sequence_length", "block_size", default=1024),
        _batch,
        Row("max_steps", "max_iters", default=600_000),
        _schedule,
        Row("precision", "dtype", precision, "bf16"),
        _model,
    ),
)
