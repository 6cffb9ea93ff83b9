"""modded-nanogpt: one Python file with `Hyperparameters` and several optimizers."""

from __future__ import annotations

from rksp.recipe_files.parse.python_source import OPTIMIZERS
from rksp.recipe_files.table.convert import betas
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row

_HOME = "Hyperparameters"


def _rates(draft: Draft) -> None:
    """Set the optimizer; Muon trains the blocks' matrices, each Adam has its own group."""
    groups = dict(draft.mapping(OPTIMIZERS))
    main = next((name for name in groups if "Muon" in name), next(iter(groups), None))
    rate = draft.number(f"{OPTIMIZERS}.{main}.lr", f"{_HOME}.learning_rate")
    if rate is not None:
        draft.put("learning_rate", rate.value, rate)
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


def _batch(draft: Draft) -> None:
    size = draft.number(f"{_HOME}.batch_size")
    if size is not None:
        draft.put("batch_size", size.value, size)
        micro = draft.number(f"{_HOME}.device_batch_size")
        if micro is not None:
            count = max(1, int(size.value) // (int(micro.value) * (draft.devices or 1)))
            if draft.devices:
                draft.put("gradient_accumulation_steps", count, size, micro, text="over replicas")
        return
    copies = draft.devices or 8
    draft.default("batch_size", copies, f"one sequence on each of {copies} devices")


def _fall(draft: Draft) -> None:
    """Set a plateau, then a linear decay over `warmdown_iters` or the last `cooldown_frac`."""
    last, share = draft.number(f"{_HOME}.warmdown_iters"), draft.number(f"{_HOME}.cooldown_frac")
    total = int(draft.value("max_steps"))
    if last is not None and last.value > 0:
        draft.put("schedule", "wsd", last)
        draft.put("decay_steps", int(last.value), last)
    elif share is not None and 0 < share.value <= 1:
        draft.put("schedule", "wsd", share)
        draft.put(
            "decay_steps", max(1, round(share.value * total)), share, text=f"of {total} steps"
        )
    draft.default("schedule", "constant")
    draft.default("min_lr_ratio", 0.0)


READER = Reader(
    name="modded-nanogpt",
    title="modded-nanogpt",
    version="01482e15 (2024)",
    source="KellerJordan/modded-nanogpt, train_gpt2.py",
    marks=(
        Marks(
            some=(
                f"{_HOME}.num_iterations {_HOME}.warmdown_iters {_HOME}.cooldown_frac "
                f"{_HOME}.sequence_length {_HOME}.train_seq_len {OPTIMIZERS}.Muon "
                f"{_HOME}.val_tokens"
            ),
            least=2,
            syntax="python",
        ),
    ),
    steps=(
        _rates,
        betas(
            f"{OPTIMIZERS}.Adam.betas", f"{OPTIMIZERS}.AdamW.betas", f"{OPTIMIZERS}.DistAdam.betas"
        ),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.95),
        Row("adam_epsilon", f"{OPTIMIZERS}.Adam.eps", default=1e-8),
        Row("weight_decay", f"{_HOME}.weight_decay {OPTIMIZERS}.Muon.weight_decay", default=0.0),
        Row("max_grad_norm", "", default=None),
        Row("sequence_length", f"{_HOME}.sequence_length {_HOME}.train_seq_len"),
        _batch,
        Row("max_steps", f"{_HOME}.num_iterations {_HOME}.num_scheduled_iterations"),
        Row("warmup_steps", f"{_HOME}.warmup_iters", default=0),
        _fall,
        Row("precision", "", default="bf16"),
        lambda draft: draft.no_target(
            "no transformers model has its blocks (U-net skips, ReLU², value mixing); "
            "name a TARGET."
        ),
    ),
)
