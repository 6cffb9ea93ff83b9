"""What trainers call the same things: optimizers, schedules, precisions, durations."""

from __future__ import annotations

import re

from rksp.optimizers.table import OPTIMIZERS, optimizer_named
from rksp.recipe_files.document import Found
from rksp.recipe_files.origin import Draft

_SCHEDULES = (
    ("constant", "constant", ""),
    ("wsd", "constant", "its final decay is left out"),
    ("warmup_stable_decay", "constant", "its final decay is left out"),
    ("trapezoid", "constant", "its final decay is left out"),
    ("cosine", "cosine", ""),
    ("linear", "linear", ""),
    ("inv", "linear", "the nearest shape"),
    ("sqrt", "linear", "the nearest shape"),
    ("polynomial", "linear", "the nearest shape"),
    ("exponential", "linear", "the nearest shape"),
)
_PRECISIONS = (
    (r"^(pure_bf16|bf16[-_]true|bf16[-_]pure)$", "bf16-pure"),
    (r"^(pure_fp16|fp16[-_]true|16[-_]true|fp16[-_]pure)$", "fp16-pure"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|^f16$|^16|half", "fp16"),
    (r"fp32|float32|^f32$|^32|tf32|full", "fp32"),
)
_DURATION = re.compile(r"^([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]*)$")


def optimizer_of(name: str) -> tuple[str | None, str]:
    """rksp's word for an optimizer, or None, and what is lost by calling it that."""
    spec, loss = optimizer_named(name)
    return (None if spec is None else spec.name), loss


def put_optimizer(draft: Draft, found: Found | None) -> None:
    """Sets the optimizer from its name in the file, or says that there is no such one here."""
    if found is None:
        return
    optimizer, loss = optimizer_of(str(found.value))
    if optimizer is None:
        draft.problem(
            "optimizer",
            f"{found.key} is {found.value!r}, which rksp does not have; pass --optimizer with the "
            f"nearest of {', '.join(spec.name for spec in OPTIMIZERS)}.",
        )
        return
    is_same = str(found.value).rsplit(".", 1)[-1].lower() == optimizer
    note = "" if is_same else f"{found.value} read as {optimizer}"
    draft.put("optimizer", optimizer, found, note=f"{note}, {loss}" if loss else note)


def put_schedule(draft: Draft, found: Found | None) -> None:
    """Sets the schedule from its name in the file, noting the nearest shape where inexact."""
    if found is None:
        return
    name = str(found.value).rsplit(".", 1)[-1].lower()
    for part, schedule, loss in _SCHEDULES:
        if part in name:
            note = "" if name == schedule else f"{found.value} read as {schedule}"
            draft.put("schedule", schedule, found, note=f"{note}, {loss}" if loss else note)
            return
    draft.problem(
        "schedule",
        f"{found.key} is {found.value!r}, a schedule that rksp does not have; pass --schedule "
        "with the nearest of constant, linear and cosine.",
    )


def precision_of(name: str) -> str | None:
    """rksp's word for a precision, or None if the name is not known."""
    for pattern, precision in _PRECISIONS:
        if re.search(pattern, name.lower()):
            return precision
    return None


def put_precision(draft: Draft, found: Found | None, *, note: str = "") -> None:
    """Sets the precision from its name in the file."""
    if found is None:
        return
    precision = precision_of(str(found.value))
    if precision is None:
        draft.problem(
            "precision",
            f"{found.key} is {found.value!r}, which names no precision that rksp knows; pass "
            "--precision.",
        )
        return
    draft.put("precision", precision, found, note=note)


def put_ratio(draft: Draft, found: Found | None) -> None:
    """Sets `min_lr_ratio` from an absolute lowest rate."""
    rate = draft.value("learning_rate")
    if found is None or not rate:
        return
    ratio = min(1.0, float(found.value) / float(rate))
    draft.put("min_lr_ratio", float(f"{ratio:.6g}"), found, note=f"{found.value:g} / {rate:g}")


def put_batch(draft: Draft, micro: Found | None, steps: Found | None, *, replicas: int = 1) -> None:
    """Sets the batch from a micro-batch, accumulation and data-parallel replicas.

    A file seldom says how many devices will run it: then one is assumed, and the note says so.

    Args:
        micro: Sequences per forward pass and device.
        steps: Forward passes per optimizer step.
        replicas: Devices that share one replica of the model (tensor and pipeline parallel).
    """
    if micro is None:
        return
    accumulation = int(steps.value) if steps is not None else 1
    copies = max(1, (draft.devices or 1) // replicas)
    batch = int(micro.value) * accumulation * copies
    known = f"{copies} replicas" if draft.devices else "1 replica (assumed: give --devices)"
    note = f"{int(micro.value)} × {accumulation} accumulated × {known}"
    draft.put("batch_size", batch, micro, steps, note=note)
    if steps is not None:
        draft.put("gradient_accumulation_steps", accumulation, steps)


def steps_of(draft: Draft, found: Found, *, default_unit: str = "ba") -> tuple[int | None, str]:
    """A duration in optimizer steps, and how it was converted.

    Units: steps or batches (`ba`, `iter`), samples (`sp`), tokens (`tok`, `T`), and `dur`, a share
    of the whole run; epochs (`ep`) need the size of the data set. The batch, the sequence length
    and, for `dur`, the number of steps must be set before.
    """
    match = _DURATION.match(str(found.value).strip())
    if match is None:
        return None, f"{found.value!r} is no duration"
    amount = float(match[1].replace("_", ""))
    unit = match[2] or default_unit
    batch = int(draft.value("batch_size"))
    tokens = batch * int(draft.value("sequence_length"))
    if unit in ("ba", "iter", "step", "steps"):
        return round(amount), ""
    if unit == "sp":
        return round(amount / batch), f"{amount:g} samples / {batch} a step"
    if unit in ("tok", "T", "tokens"):
        return round(amount / tokens), f"{amount:g} tokens / {tokens} a step"
    if unit == "dur":
        return round(amount * int(draft.value("max_steps"))), f"{amount:g} of the run"
    if unit == "ep":
        return None, f"{amount:g} epochs need the size of the data set; give --max-steps"
    return None, f"{unit!r} is no unit of time that rksp knows"


def put_steps(draft: Draft, name: str, found: Found | None, *, default_unit: str = "ba") -> None:
    """Sets `max_steps` or `warmup_steps` from a duration, or leaves it assumed with the reason."""
    if found is None:
        return
    steps, note = steps_of(draft, found, default_unit=default_unit)
    if steps is None:
        fallback = draft.value(name)
        draft.assume(name, fallback, f"{found.key}: {note}")
    else:
        draft.put(name, max(steps, 1) if name == "max_steps" else steps, found, note=note)


def put_warmup_share(draft: Draft, found: Found | None) -> None:
    """Sets the warm-up from a share of the run if below one, from a number of steps otherwise."""
    if found is None:
        return
    if found.value >= 1:
        draft.put("warmup_steps", round(found.value), found)
        return
    total = int(draft.value("max_steps"))
    note = f"{found.value:g} of {total} steps"
    draft.put("warmup_steps", round(found.value * total), found, note=note)
