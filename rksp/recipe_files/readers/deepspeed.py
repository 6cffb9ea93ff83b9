"""DeepSpeed's JSON, alone or named by another trainer's file; `auto` leaves a setting open."""

from __future__ import annotations

from collections.abc import Sequence

from rksp.ground.model import definite
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft

_SCHEDULER = "scheduler.params"


def _rate(draft: Draft) -> None:
    """Set the peak; a scheduler's replaces the optimizer's (deepspeed/runtime/lr_schedules.py)."""
    found = draft.number(f"{_SCHEDULER}.warmup_max_lr", f"{_SCHEDULER}.cycle_max_lr")
    if found is None and draft.word("scheduler.type") == "warmupdecaylr" and not _is_open(draft):
        kind = draft.text("scheduler.type")
        draft.put("learning_rate", 1e-3, kind, text="default of WarmupDecayLR")
        return
    is_muon = draft.value("optimizer") == "muon"
    found = found or (draft.number("optimizer.params.muon_lr") if is_muon else None)
    found = found or draft.number("optimizer.params.lr")
    if found is not None:
        draft.put("learning_rate", found.value, found)


def _is_open(draft: Draft) -> bool:
    return draft.document.has(f"{_SCHEDULER}.warmup_max_lr")  # it is `auto` if it is no number


def _shape(draft: Draft) -> None:
    """Set the warm-up and the final rate; a schedule warms up over 1000 steps, by a logarithm."""
    kind = draft.word("scheduler.type")
    if kind == "warmupcosinelr":
        convert.number(draft, "min_lr_ratio", [f"{_SCHEDULER}.cos_min_ratio"])
        draft.default("min_lr_ratio", 1e-4)
    if not kind.startswith("warmup"):
        return
    draft.default("warmup_steps", 1000, f"of {definite(draft.text('scheduler.type')).value}")
    shape = draft.text(f"{_SCHEDULER}.warmup_type")
    if shape is None or shape.value == "log":
        draft.note("The warm-up rises by the logarithm of the step; rksp reads a straight line.")


def _adam(draft: Draft) -> None:
    found = draft.text("optimizer.type")
    if found is None or found.value.lower() not in ("adam", "adamw"):
        return
    by_torch = draft.true("optimizer.params.torch_adam") is not None
    for name, key, value in (
        ("adam_beta1", "betas", 0.9),
        ("adam_beta2", "betas", 0.999),
        ("adam_epsilon", "eps", 1e-8),
        ("weight_decay", "weight_decay", 0.01 if by_torch else 0.0),
    ):
        if not draft.document.has(f"optimizer.params.{key}"):
            draft.default(name, value)


def _muon(draft: Draft) -> None:
    """Note that ZeRO clips Muon's orthogonal update, not the gradient (DeepSpeed #8439, #7776)."""
    bound = draft.value("max_grad_norm")
    if draft.value("optimizer") == "muon" and bound is not None:
        draft.note(
            "DeepSpeed clips Muon's update after making it orthogonal: gradient_clipping "
            f"{bound:g} divides each step by the update's own norm, which grows with the model "
            "(DeepSpeed #8439). rksp judges the rate without it; set gradient_clipping to 0."
        )


def _stays_open(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set nothing: where the switch is `auto`, the field stays assumed."""
