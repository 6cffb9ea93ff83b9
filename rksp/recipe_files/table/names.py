"""Trainers' names for the same optimizers, schedules and precisions."""

from __future__ import annotations

import re

from rksp.recipe.optimizers.table import optimizer_named

_SCHEDULES = (  # the first that the name matches, and what is lost by calling it that
    (r"stable_decay|wsd|trapez|warmup_stable", "wsd", ""),
    (r"restart", "cosine", "its restarts are left out"),
    (r"cosine", "cosine", ""),
    (r"^inv$", "inverse_sqrt", "the nearest shape"),
    (r"inv.*sq(ua)?rt|inv.*square_?root|noam|rsqrt", "inverse_sqrt", ""),
    (r"poly", "polynomial", ""),
    (r"exponential", "exponential", ""),
    (r"multi_?step|^step|steplr$", "step", ""),
    (r"warmupdecaylr|warmup_?annealing", "linear", ""),
    (r"warmuplr|constant|none|plateau|identity", "constant", ""),
    (r"linear|tri_stage", "linear", ""),
)
_PRECISIONS = (
    (r"^fp8$|float8|^mx|fp4", "fp8"),
    (r"^(pure_bf16|bf16[-_]true|bf16[-_]pure)$", "bf16-pure"),
    (r"^(pure_fp16|fp16[-_]true|16[-_]true|fp16[-_]pure)$", "fp16-pure"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|^f16$|^16|half", "fp16"),
    (r"fp32|float32|^f32$|^32|tf32|full|fp64|float64|double", "fp32"),
)


# Trainers' words for the decay at the end of a wsd schedule.
DECAY_SHAPES = {"linear": "linear", "cosine": "cosine", "1-sqrt": "sqrt", "minus_sqrt": "sqrt"}
# Trainers' words for a stage of training or for what it minimizes.
OBJECTIVES = {"dpo": "dpo", "ipo": "dpo", "simpo": "dpo", "cpo": "dpo", "kto": "kto",
              "orpo": "orpo", "rm": "reward", "reward": "reward", "ppo": "ppo", "rloo": "ppo",
              "grpo": "grpo", "gdpo": "grpo", "gkd": "distillation", "pt": "lm", "sft": "lm",
              "classification": "classification", "mlm": "mlm", "seq2seq": "seq2seq",
              "other": "other"}  # fmt: skip


def optimizer_of(name: str) -> tuple[str | None, str]:
    """Return rksp's name for an optimizer, or None, and what the name does not convey."""
    spec, loss = optimizer_named(name)
    return (None if spec is None else spec.name), loss


def schedule_of(name: str) -> tuple[str | None, str]:
    """Return rksp's name for a schedule, or None, and what the name does not convey."""
    plain = name.rsplit(".", 1)[-1].lower().replace("-", "_")
    return next(
        ((schedule, loss) for pattern, schedule, loss in _SCHEDULES if re.search(pattern, plain)),
        (None, ""),
    )


def precision_of(name: str) -> str | None:
    """Return rksp's name for a precision, or None if it is unknown."""
    found = (ours for pattern, ours in _PRECISIONS if re.search(pattern, name.lower()))
    return next(found, None)
