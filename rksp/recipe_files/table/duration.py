"""The length of a run from a trainer's durations: steps, samples, tokens, epochs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.draft import Draft

_DURATION = re.compile(r"^([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]*)$")


def duration(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set a number of steps from a duration with its unit, such as `100ba` or `5e9tok`."""
    found = draft.get(*keys)
    if found is not None:
        put_steps(draft, name, found, "")


def put_steps(draft: Draft, name: str, found: Found, unit: str = "ba") -> None:
    """Set `max_steps` or `warmup_steps` from a duration, or leave it assumed with the reason.

    Units: steps or batches (`ba`, `iter`), samples (`sp`), tokens (`tok`, `T`), and `dur`, a share
    of the whole run; epochs (`ep`) need the user's `rows`. The batch, the sequence length
    and, for `dur`, the number of steps must be set before.
    """
    match = _DURATION.match(str(found.value).strip())
    if match is None:
        draft.assume(name, f"{found.key}: {found.value!r} is not a duration", found)
        return
    amount, unit = float(match[1].replace("_", "")), match[2] or unit
    batch_size = int(draft.value("batch_size"))
    tokens = batch_size * int(draft.value("sequence_length"))
    ways = {
        "sp": (batch_size, f"{amount:g} samples / {batch_size} a step", ("batch_size",)),
        "tok": (
            tokens,
            f"{amount:g} tokens / {tokens} a step",
            ("batch_size", "sequence_length"),
        ),
    }
    unit = {"T": "tok", "tokens": "tok"}.get(unit, unit)
    least = 1 if name == "max_steps" else 0
    if unit in ("ba", "iter", "step", "steps"):
        draft.put(name, max(least, round(amount)), found)
    elif unit in ways:
        divisor, text, after = ways[unit]
        draft.put(name, max(least, round(amount / divisor)), found, text=text, after=after)
    elif unit == "dur":
        total = int(draft.value("max_steps"))
        text = f"{amount:g} of {total} steps"
        draft.put(name, round(amount * total), found, text=text, after=("max_steps",))
    elif unit == "ep":
        put_epochs(draft, name, amount, found, found.key)
    else:
        draft.assume(name, f"{found.key}: {unit!r} is not a unit of time that rksp knows", found)


def epochs(key: str, default: float | None = None) -> Callable[[Draft], None]:
    """Set `max_steps` from epochs, by default so many, if no number of steps is known."""

    def step(draft: Draft) -> None:
        found = draft.number(key)
        if not draft.knows("max_steps") and (found is not None or default is not None):
            count = None if found is None else found.value
            put_epochs(draft, "max_steps", count, found, key, default)

    return step


def put_epochs(
    draft: Draft,
    name: str,
    count: float | None,
    found: Found | None,
    key: str,
    default: float | None = None,
    rounding: Callable[[float], int] = math.ceil,
) -> None:
    """Set `max_steps` or `warmup_steps` from epochs; without the user's rows, leave it assumed.

    An epoch has as many steps as batches, the last of which may be smaller; with `rounding` down,
    the trainer drops that one. The batch must be set before.

    Args:
        draft: The recipe.
        name: The field.
        count: Number of epochs; None if the file does not say.
        found: What says it.
        key: The trainer's name of it.
        default: The trainer's default.
        rounding: How the last batch counts.
    """
    said = f"{default:g} (the default)" if count is None else f"{count:g}"
    rows = draft.value("rows")
    if rows is None:
        why = f"{key}: {said} epochs need the size of the data set; give --rows or --max-steps"
        draft.assume(name, why, found)
        return
    size, times = int(draft.value("batch_size")), definite(default if count is None else count)
    steps = math.ceil(times * rounding(rows / size))
    text = f"{said} epochs of {rows:,} rows / {size} a step"
    least = 1 if name == "max_steps" else 0
    draft.put(name, max(least, steps), found, text=text, after=("rows", "batch_size"))


def put_milestones(
    draft: Draft, epochs: Sequence[float], total: float, *found: Found | None
) -> None:
    """Set `decay_milestones` from the epochs after which the rate falls; `max_steps` is known.

    Args:
        draft: The recipe.
        epochs: The epochs.
        total: Epochs of the whole run.
        found: What says them.
    """
    steps = tuple(max(1, epoch_in_steps(draft, epoch, total)) for epoch in epochs)
    text = f"epochs of {total:g}"
    draft.put("decay_milestones", steps, *found, text=text, after=("max_steps",))


def epoch_in_steps(draft: Draft, epoch: float, total: float) -> int:
    """Return the step at which an epoch begins in a run of `total` epochs and `max_steps` steps."""
    return round(epoch / total * int(draft.value("max_steps")))
