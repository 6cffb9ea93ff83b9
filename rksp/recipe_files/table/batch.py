"""The batch of a step from a trainer's words: the devices, the micro-batch and what they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.draft import Draft


def devices(*keys: str) -> Callable[[Draft], None]:
    """Return the number of devices: the user's, else the product of these keys."""

    def step(draft: Draft) -> None:
        found = [draft.number(key) for key in keys]
        if found[0] is None or found[0].value < 1:
            return
        count = 1
        for one in found:
            count *= max(1, int(one.value)) if one is not None else 1
        if not draft.devices:
            draft.devices = count
            draft.devices_text = " × ".join(one.key for one in found if one is not None)

    return step


def batch(
    micro: str,
    accumulation: str = "",
    *,
    whole: str = "",
    shared: Sequence[str] = (),
    default: int | None = None,
) -> Callable[[Draft], None]:
    """Set the batch from the file's full batch, or from micro × accumulation × replicas.

    A file seldom states the number of devices; then one replica is assumed.

    Args:
        micro: Keys of the sequences per forward pass and device, separated by blanks.
        accumulation: Keys of the forward passes per optimizer step.
        whole: Keys of the sequences per optimizer step.
        shared: Keys whose product is the number of devices that share one replica of the model.
        default: The trainer's own micro-batch.
    """

    def step(draft: Draft) -> None:
        total = draft.number(*whole.split()) if whole else None
        size = draft.number(*micro.split()) if micro else None
        steps = draft.number(*accumulation.split()) if accumulation else None
        copies = _copies(draft, shared)
        if total is not None and total.value > 0:
            draft.put("batch_size", int(total.value), total)
            if steps is not None and steps.value >= 1:
                draft.put("gradient_accumulation_steps", int(steps.value), steps)
            elif size is not None and size.value >= 1 and draft.devices:
                _divide(draft, total, size, copies)
            return
        if size is None and default is None:
            return
        put_batch(draft, size, steps, copies, default or 1)

    return step


def put_batch(
    draft: Draft, size: Found | None, steps: Found | None, copies: int, default: int = 1
) -> None:
    """Set the batch from a micro-batch (else the trainer's default) and accumulation."""
    count = int(size.value) if size is not None else default
    accumulated = max(1, int(steps.value)) if steps is not None else 1
    if draft.devices:
        known = f"{copies} replica{'s' if copies > 1 else ''} ({draft.devices_text})"
    else:
        known = "1 replica (assumed: give --devices)"
    text = f"{count:g} × {accumulated} accumulated × {known}"
    draft.put(
        "batch_size", count * accumulated * copies, size, steps, text=text, after=("devices",)
    )
    if steps is not None:
        draft.put("gradient_accumulation_steps", accumulated, steps)


def _copies(draft: Draft, shared: Sequence[str]) -> int:
    """Return the number of replicas of the model on the devices."""
    found = [draft.number(key) for key in shared]
    parts = 1
    for one in found:
        parts *= max(1, int(one.value)) if one is not None else 1
    return max(1, (draft.devices or 1) // parts)


def _divide(draft: Draft, total: Found, size: Found, copies: int) -> None:
    count = max(1, int(total.value) // (int(size.value) * copies))
    text = f"{total.value} / ({size.value} × {copies} replicas)"
    draft.put("gradient_accumulation_steps", count, total, size, text=text)
