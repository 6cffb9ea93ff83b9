"""DeepSpeed's JSON, alone or named by another trainer's file; `auto` leaves a setting open."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.recipe_files.batch import batch
from rksp.recipe_files.convert import betas, clip, lowest_rate, optimizer, schedule, switches
from rksp.recipe_files.draft import Draft
from rksp.recipe_files.table import Marks, Reader, Row

_SCHEDULER = "scheduler.params"


def _rate(draft: Draft) -> None:
    """Set the peak; a scheduler's replaces the optimizer's (deepspeed/runtime/lr_schedules.py)."""
    found = draft.number(f"{_SCHEDULER}.warmup_max_lr", f"{_SCHEDULER}.cycle_max_lr")
    found = found or draft.number("optimizer.params.lr")
    if found is not None:
        draft.put("learning_rate", found.value, found)
    share = draft.number(f"{_SCHEDULER}.cos_min_ratio")
    if share is not None:
        draft.put("min_lr_ratio", share.value, share)


def _stays_open(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set nothing: where the switch is `auto`, the field stays assumed."""


READER = Reader(
    name="deepspeed",
    title="DeepSpeed",
    version="0.3.1",
    source="deepspeedai/DeepSpeed, deepspeed/runtime/constants.py and lr_schedules.py",
    unverified="newer releases",
    marks=(
        Marks(
            some=(
                "zero_optimization",
                "train_micro_batch_size_per_gpu",
                "train_batch_size",
                "gradient_clipping",
                "fp16.enabled",
                "bf16.enabled",
                "optimizer.params",
                "scheduler.params",
                "steps_per_print",
                "wall_clock_breakdown",
                "zero_allow_untested_optimizer",
                "prescale_gradients",
            ),
            least=2,
            none=(
                "num_layers",
                "hidden_size",
                "train_iters",
                "seq_length",
                "lr_decay_iters",
                "model_name_or_path",
                "pipe_parallel_size",
                "num_train_epochs",
                "model",
                "compute_environment",
            ),
            syntax=("json", "yaml"),
        ),
    ),
    steps=(
        Row("optimizer", "optimizer.type", optimizer),
        _rate,
        betas("optimizer.params.betas"),
        Row("adam_epsilon", "optimizer.params.eps"),
        Row("weight_decay", "optimizer.params.weight_decay"),
        Row("max_grad_norm", "gradient_clipping", clip, None),
        batch(
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
            whole="train_batch_size",
        ),
        Row("max_steps", f"{_SCHEDULER}.total_num_steps"),
        Row("schedule", "scheduler.type", schedule, "constant"),
        Row("warmup_steps", f"{_SCHEDULER}.warmup_num_steps", default=0),
        Row("min_lr_ratio", f"{_SCHEDULER}.cycle_min_lr", lowest_rate, 0.0),
        switches(bf16__enabled="bf16", fp16__enabled="fp16"),
        Row("precision", "bf16.enabled", _stays_open),
        Row("precision", "fp16.enabled", _stays_open, "fp32"),
        lambda draft: draft.no_target("a DeepSpeed file does not describe a model; name a TARGET."),
    ),
)
