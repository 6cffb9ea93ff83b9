"""From a trainer's words and units to rksp's: each function sets fields of a draft.

A converter takes the draft, the field and the keys to look under, and sets the field if one of
them is there. A step takes the draft alone and sets what several keys decide together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rksp.errors import InputError
from rksp.optimizers.table import OPTIMIZERS
from rksp.recipe_files.document import Found
from rksp.recipe_files.draft import Draft
from rksp.recipe_files.names import optimizer_of, precision_of, schedule_of

Converter = Callable[[Draft, str, Sequence[str]], None]
_DURATION = re.compile(r"^([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]*)$")


def number(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return a number unchanged."""
    found = draft.number(*keys)
    if found is not None:
        draft.put(name, found.value, found)


def positive(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return a number; zero and Hugging Face's -1 mean that it was not set."""
    found = draft.number(*keys)
    if found is not None and found.value > 0:
        draft.put(name, found.value, found)


def clip(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return a clipping norm; zero or less switches clipping off."""
    found = draft.number(*keys)
    if found is not None:
        draft.put(name, found.value if found.value > 0 else None, found)


def optimizer(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return an optimizer by its name, or a sentence that rksp does not have it."""
    found = draft.text(*keys)
    if found is not None:
        put_optimizer(draft, found)


def put_optimizer(draft: Draft, found: Found) -> None:
    """Set the optimizer from its name."""
    ours, loss = optimizer_of(str(found.value))
    if ours is None:
        draft.problem(
            "optimizer",
            f"{found.key} is {found.value!r}, which rksp does not have; pass --optimizer with the "
            f"nearest of {', '.join(spec.name for spec in OPTIMIZERS)}.",
        )
        return
    is_same = str(found.value).rsplit(".", 1)[-1].lower() == ours
    text = "" if is_same else f"{found.value} read as {ours}"
    draft.put("optimizer", ours, found, text=f"{text}, {loss}" if loss else text)


def schedule(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return a schedule by its name, as the nearest shape where rksp lacks the exact one."""
    found = draft.text(*keys)
    if found is not None:
        put_schedule(draft, found)


def put_schedule(draft: Draft, found: Found) -> None:
    """Set the schedule from its name."""
    ours, loss = schedule_of(str(found.value))
    if ours is None:
        draft.problem(
            "schedule",
            f"{found.key} is {found.value!r}, a schedule that rksp does not have; pass --schedule "
            "with the nearest of constant, linear, cosine, wsd, inverse_sqrt, polynomial, "
            "exponential and step.",
        )
        return
    is_same = str(found.value).lower() == ours
    text = "" if is_same else f"{found.value} read as {ours}"
    draft.put("schedule", ours, found, text=f"{text}, {loss}" if loss else text)


def precision(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return a precision by its name."""
    found = draft.text(*keys)
    if found is not None:
        put_precision(draft, found)


def put_precision(draft: Draft, found: Found, *, text: str = "") -> None:
    """Set the precision from its name."""
    ours = precision_of(str(found.value))
    if ours is None:
        draft.problem(
            "precision",
            f"{found.key} is {found.value!r}, a precision that rksp does not have; pass "
            "--precision.",
        )
        return
    draft.put("precision", ours, found, text=text)


def switches(**precisions: str) -> Callable[[Draft], None]:
    """Set the precision from boolean keys, the first that is on: `switches(bf16="bf16")`.

    Dots of a key are written as two underscores.
    """

    def step(draft: Draft) -> None:
        for key, ours in precisions.items():
            found = draft.true(key.replace("__", "."))
            if found is not None:
                draft.put("precision", ours, found)
                return

    return step


def betas(*keys: str) -> Callable[[Draft], None]:
    """Set both of Adam's betas from a pair, a list or text such as `(0.9, 0.98)`."""

    def step(draft: Draft) -> None:
        found = draft.get(*keys)
        if found is None:
            return
        pair = found.value
        if isinstance(pair, str):
            pair = [
                float(part) for part in re.findall(r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", pair)
            ]
        if not isinstance(pair, list) or len(pair) < 2:
            raise InputError(
                f"{draft.where(found)}: {found.key} is {found.value!r}, not a pair of numbers."
            )
        draft.put("adam_beta1", pair[0], found)
        draft.put("adam_beta2", pair[1], found)

    return step


def lowest_rate(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set `min_lr_ratio` from the lowest learning rate, in the units of the peak."""
    found, rate = draft.number(*keys), draft.value("learning_rate")
    if found is None or not rate:
        return
    ratio = min(1.0, float(found.value) / float(rate))
    draft.put(name, float(f"{ratio:.6g}"), found, text=f"{found.value:g} / {rate:g}")


def warmup(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Return a warm-up: a share of the run if below one, a number of steps otherwise."""
    found = draft.number(*keys)
    if found is not None:
        put_warmup(draft, found)


def put_warmup(draft: Draft, found: Found, rounding: Callable[[float], int] = round) -> None:
    """Set the warm-up from a share of the run if below one, else from a number of steps.

    Args:
        draft: The draft to fill.
        found: The share or the number.
        rounding: How the trainer rounds a share of the run.
    """
    if found.value >= 1 or found.value == 0:
        draft.put("warmup_steps", round(found.value), found)
        return
    total = int(draft.value("max_steps"))
    text = f"{found.value:g} of {total} steps"
    steps = rounding(found.value * total)
    draft.put("warmup_steps", steps, found, text=text, after=("max_steps",))


def share_of_run(name: str, share: float, *, most: int | None = None) -> Callable[[Draft], None]:
    """Return a trainer's default that is a share of the run."""

    def step(draft: Draft) -> None:
        total = int(draft.value("max_steps"))
        steps = int(share * total)
        value = steps if most is None else min(steps, most)
        draft.default(name, value, f"{share:g} of {total} steps", after=("max_steps",))

    return step


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


def duration(unit: str = "ba") -> Converter:
    """Convert a duration such as `100ba` or `5e9tok` to steps; `unit` is the default unit."""

    def convert(draft: Draft, name: str, keys: Sequence[str]) -> None:
        found = draft.get(*keys)
        if found is not None:
            put_steps(draft, name, found, unit)

    return convert


def put_steps(draft: Draft, name: str, found: Found, unit: str = "ba") -> None:
    """Set `max_steps` or `warmup_steps` from a duration, or leave it assumed with the reason.

    Units: steps or batches (`ba`, `iter`), samples (`sp`), tokens (`tok`, `T`), and `dur`, a share
    of the whole run; epochs (`ep`) need the size of the data set. The batch, the sequence length
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
        why = f"{found.key}: {amount:g} epochs need the size of the data set; give --max-steps"
        draft.assume(name, why, found)
    else:
        draft.assume(name, f"{found.key}: {unit!r} is not a unit of time that rksp knows", found)


def epochs(key: str, default: float | None = None) -> Callable[[Draft], None]:
    """Say that epochs need the size of the data set, if no number of steps is known."""

    def step(draft: Draft) -> None:
        found = draft.number(key)
        if draft.knows("max_steps") or (found is None and default is None):
            return
        count = f"{found.value:g}" if found is not None else f"{default:g} (the default)"
        why = f"{key}: {count} epochs need the size of the data set; give --max-steps"
        draft.assume("max_steps", why, found)

    return step


def lora(
    *on: str,
    rank: str,
    alpha: str,
    targets: str,
    kind: str = "lora",
    default_rank: int | None = None,
) -> Callable[[Draft], None]:
    """Set the adapters' fields where one of the keys `on` is there and not switched off.

    Args:
        on: Keys that switch adapters on; one named `key=value` must hold that value.
        rank: Keys of the rank.
        alpha: Keys of the scale.
        targets: Keys of the modules.
        kind: The kind of adapters to set.
        default_rank: The trainer's own rank.
    """

    def step(draft: Draft) -> None:
        found = next((f for key in on if (f := _holds(draft, key)) is not None), None)
        if found is None or draft.knows("peft"):
            return
        draft.put("peft", kind, found)
        if default_rank is not None:
            draft.default("lora_rank", default_rank)
        number(draft, "lora_rank", rank.split())
        number(draft, "lora_alpha", alpha.split())
        modules = draft.get(*targets.split())
        if modules is not None:
            listed = (
                modules.value if isinstance(modules.value, list) else str(modules.value).split(",")
            )
            draft.put("lora_targets", tuple(str(part) for part in listed), modules)
        draft.note("The run trains adapters, but rksp's estimate is for training all weights.")

    return step


def _holds(draft: Draft, key: str) -> Found | None:
    """Return the key if it is switched on, or if `key=value` holds that value."""
    name, _, wanted = key.partition("=")
    if not wanted:
        return draft.true(name)
    found = draft.text(name)
    return found if found is not None and found.value.lower() == wanted else None


def means(field: str, key: str, words: dict[str, object]) -> Callable[[Draft], None]:
    """Set a field from a key's value by a table of words; an unknown word sets nothing."""

    def step(draft: Draft) -> None:
        found = draft.text(key)
        if found is not None and found.value.lower() in words:
            draft.put(field, words[found.value.lower()], found)

    return step
