"""Trainers of GPT-2 in one file: nanoGPT, modded-nanogpt and llm.c.

nanoGPT's Python file of assignments, and modded-nanogpt's with `Hyperparameters` and several
optimizers, are read as syntax trees and never run; llm.c's `train_gpt2cu` has one-letter flags, its
`train_gpt2.py` long ones.
"""

from __future__ import annotations

from rksp.recipe_files.parse.python_loop import OPTIMIZERS
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import shape_of

_SHAPE = {"n_layer": 12, "n_head": 12, "n_embd": 768}
_CHARACTERS = 65  # of tiny Shakespeare (data/shakespeare_char/prepare.py)
_VOCABULARY = 50304


def _batch(draft: Draft) -> None:
    """Set the batch; nanoGPT divides the accumulation by the devices, so it counts once."""
    size = draft.number_or(12, "batch_size")
    steps = draft.number_or(40, "gradient_accumulation_steps")
    micro, accumulated = int(size.value), int(steps.value)
    text = f"{micro} × {accumulated} accumulated over all devices"
    draft.put("batch_size", micro * accumulated, size, steps, text=text)
    draft.put("gradient_accumulation_steps", accumulated, steps)


def _schedule(draft: Draft) -> None:
    fixed, lowest = draft.false("decay_lr"), draft.number_or(6e-5, "min_lr")
    if fixed is not None:
        convert.put_fixed(draft, fixed)
        draft.default("min_lr_ratio", 1.0)
        return
    draft.default("schedule", "cosine")
    convert.number(draft, "warmup_steps", ["warmup_iters"])
    draft.default("warmup_steps", 2000)
    if draft.value("learning_rate") is None:
        draft.assume("min_lr_ratio", "min_lr is a share of a rate that is not known")
    else:
        ratio, text = convert.over_peak(draft, lowest.value)
        draft.put("min_lr_ratio", ratio, lowest, text=text)
    end = draft.number_or(600_000, "lr_decay_iters")
    if int(end.value) != draft.value("max_steps"):
        convert.put_decay_until(draft, int(end.value), end)


def _model(draft: Draft) -> None:
    shape = {key: int(draft.amount(key, default=usual)) for key, usual in _SHAPE.items()}
    start = draft.text("init_from")
    if start is not None and start.value not in ("scratch", "resume"):
        draft.names_weights = True
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
        shape["vocab_size"] = _VOCABULARY
    draft.describe("gpt2", shape | {"n_positions": int(draft.value("sequence_length"))}, *notes)


_HOME = "Hyperparameters"


def _rates(draft: Draft) -> None:
    """Set the optimizer; Muon trains the blocks' matrices, each Adam has its own group."""
    groups = dict(draft.mapping(OPTIMIZERS))
    main = next((name for name in groups if "Muon" in name), next(iter(groups), None))
    convert.number(draft, "learning_rate", [f"{OPTIMIZERS}.{main}.lr", f"{_HOME}.learning_rate"])
    if main is not None:
        found = draft.get(f"{OPTIMIZERS}.{main}")
        draft.put("optimizer", "muon" if "Muon" in main else "adamw", found)
    others = [
        f"{name} at {settings['lr']:g}"
        for name, settings in groups.items()
        if name != main
        and isinstance(settings, dict)
        and isinstance(settings.get("lr"), int | float)
    ]
    if others:
        draft.note(f"Groups have their own rates ({', '.join(others)}); rksp reads only {main}'s.")


def _warmdown(draft: Draft, keys: str, *, share: str = "") -> None:
    found, part = draft.number(*keys.split()), draft.number(*share.split())
    span = int(found.value) if found is not None else 0
    if found is None and part is not None and 0 < part.value <= 1:
        found, span = part, max(1, round(part.value * int(draft.value("max_steps"))))
    if span > 0:
        draft.put("schedule", "wsd", found, text="a plateau, then linear decay")
        draft.put("decay_steps", span, found)
        draft.put("min_lr_ratio", 0.0, found)


def _is_python(draft: Draft) -> bool:
    return draft.document.program.endswith(".py")


def _c_rate(draft: Draft) -> float:
    return 1e-4 if _is_python(draft) else 3e-4


def _c_length(draft: Draft) -> int:
    return 64 if _is_python(draft) else 1024


def _epoch(draft: Draft) -> None:
    if _is_python(draft):
        draft.default("max_steps", 10)
    if not draft.knows("max_steps"):
        draft.assume("max_steps", "one pass over data of unknown size; give --max-steps")


def _c_precision(draft: Draft) -> None:
    convert.precision(draft, "precision", ["dtype"])
    copies = draft.number("w")
    if copies is not None:
        draft.put("precision", "bf16" if copies.value else "bf16-pure", copies)
    draft.default("precision", "fp32" if _is_python(draft) else "bf16", "as compiled")


def _c_model(draft: Draft) -> None:
    name = draft.text_or("", "e", "model").value
    length = {"n_positions": int(draft.value("sequence_length"))}
    known = shape_of(name)
    if known is not None:
        draft.describe(known[0], {**known[1], **length})
    else:
        if name.endswith(".bin"):
            draft.names_weights = True
        draft.no_target(f"{name or 'the descriptor'} names a weight file; name a TARGET.")
