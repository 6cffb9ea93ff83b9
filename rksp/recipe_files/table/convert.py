"""From a trainer's words and units to rksp's: each function sets fields of a draft.

A converter takes the draft, the field and the keys to look under, and sets the field if one of
them is there. A step takes the draft alone and sets what several keys decide together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rksp.ground.errors import InputError
from rksp.recipe_files.parse.document import Found
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import OBJECTIVES, optimizer_of, precision_of, schedule_of

Converter = Callable[[Draft, str, Sequence[str]], None]


def number(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set a field to a number, unchanged."""
    found = draft.number(*keys)
    if found is not None:
        draft.put(name, found.value, found)


def positive(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set a field to a number; zero and Hugging Face's -1 mean that it was not given."""
    found = draft.number(*keys)
    if found is not None and found.value > 0:
        draft.put(name, found.value, found)


def clip(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set the clipping norm; zero or less switches clipping off."""
    found = draft.number(*keys)
    if found is not None:
        draft.put(name, found.value if found.value > 0 else None, found)


def put_optimizer(draft: Draft, found: Found) -> None:
    """Set the optimizer from its name; one that rksp does not have is `other`."""
    ours, loss = optimizer_of(str(found.value))
    draft.put("optimizer", ours or "other", found, text=_read_as(found, ours or "other", loss))


def put_schedule(draft: Draft, found: Found) -> None:
    """Set the schedule from its name; one that rksp does not have leaves it assumed."""
    ours, loss = schedule_of(str(found.value))
    if ours is None:
        why = f"{found.key} is {found.value!r}, which rksp does not have; give --schedule"
        draft.assume("schedule", why, found)
    else:
        draft.put("schedule", ours, found, text=_read_as(found, ours, loss))


def put_precision(draft: Draft, found: Found, *, text: str = "") -> None:
    """Set the precision from its name; one that rksp does not have counts as fp8, not judged."""
    ours = precision_of(str(found.value))
    if ours is None:
        text = f"{found.value}, which rksp does not have, read as fp8"
    draft.put("precision", ours or "fp8", found, text=text)


def _read_as(found: Found, ours: str, loss: str) -> str:
    """Say what is read for what, and what is lost by it; empty if it is the same word."""
    is_same = str(found.value).rsplit(".", 1)[-1].lower() == ours
    text = "" if is_same else f"{found.value} read as {ours}"
    return f"{text}, {loss}" if loss else text


def _named(put: Callable[[Draft, Found], None]) -> Converter:
    def convert(draft: Draft, name: str, keys: Sequence[str]) -> None:
        found = draft.text(*keys)
        if found is not None:
            put(draft, found)

    return convert


# Set a field from its name in the file, to the nearest that rksp has.
optimizer, schedule, precision = map(_named, (put_optimizer, put_schedule, put_precision))


def put_decay_until(draft: Draft, end: int, found: Found | None) -> None:
    """Set the decay from the end of the warm-up to a step."""
    span = max(1, end - int(draft.value("warmup_steps")))
    draft.put("decay_steps", span, found, text=f"{end} less the warm-up")


def switches(**precisions: str) -> Callable[[Draft], None]:
    """Set the precision from boolean keys, the first that is on: `switches(bf16="bf16")`.

    Dots of a key are written as two underscores.
    """

    def step(draft: Draft) -> None:
        draft.asked.update(key.replace("__", ".") for key in precisions)
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
    found = draft.number(*keys)
    if found is not None and draft.value("learning_rate"):
        ratio, text = over_peak(draft, found.value)
        draft.put(name, ratio, found, text=text)


def over_peak(draft: Draft, lowest: float) -> tuple[float, str]:
    """Return a rate over the peak, at most 1, and the division as text."""
    rate = float(draft.value("learning_rate") or 1.0)
    return float(f"{min(1.0, lowest / rate):.6g}"), f"{lowest:g} / {rate:g}"


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


def warmup_by(rounding: Callable[[float], int]) -> Converter:
    """Set the warm-up from steps or a share of the run, which the trainer rounds like this."""

    def convert(draft: Draft, name: str, keys: Sequence[str]) -> None:
        found = draft.number(*keys)
        if found is not None:
            put_warmup(draft, found, rounding)

    return convert


warmup = warmup_by(round)


def warmup_share(share: float, *, most: int | None = None) -> Callable[[Draft], None]:
    """Set a trainer's default warm-up, a share of the run."""

    def step(draft: Draft) -> None:
        total = int(draft.value("max_steps"))
        steps = int(share * total)
        value = steps if most is None else min(steps, most)
        text = f"{share:g} of {total} steps"
        draft.default("warmup_steps", value, text, after=("max_steps",))

    return step


# Switches and ways to begin that make a kind of adapters of LoRA, by the trainers' names.
_KIND_SWITCHES = {
    "dora": ("use_dora", "peft_use_dora", "model.use_dora"),
    "rslora": ("use_rslora", "peft_use_rslora", "use_rslora_scaling"),
    "pissa": ("pissa_init",),
}
_BEGINNINGS = ("init_lora_weights", "peft_init_lora_weights", "init_weights", "lora_init_weights")


def kind_of_adapters(draft: Draft, plain: str, *, home: str = "") -> tuple[str, Found | None]:
    """Return the kind of adapters, and where it is said; other kinds than LoRA stay as they are.

    Args:
        draft: The draft.
        plain: The kind without a switch; a quantized base decides more than a switch.
        home: Keys begin with this.
    """
    if plain != "lora":
        return plain, None
    for kind, keys in _KIND_SWITCHES.items():
        found = draft.true(*(home + key for key in keys))
        if found is not None:
            return kind, found
    begun = draft.get(*(home + key for key in _BEGINNINGS))
    if begun is not None and str(begun.value).lower().startswith("pissa"):
        return "pissa", begun
    return plain, None


def put_targets(draft: Draft, found: Found) -> None:
    """Set the modules that get adapters, from a list or from names between commas."""
    listed = found.value if isinstance(found.value, list) else str(found.value).split(",")
    draft.put("lora_targets", tuple(str(part).strip() for part in listed), found)


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
        on: Keys that switch adapters on; one named `key=value` must hold that value, and one that
            is the rank's must be above zero.
        rank: Keys of the rank.
        alpha: Keys of the scale.
        targets: Keys of the modules.
        kind: The kind of adapters to set.
        default_rank: The trainer's own rank.
    """

    def step(draft: Draft) -> None:
        found = next((f for key in on if (f := _holds(draft, key, rank)) is not None), None)
        if found is None and not draft.knows("peft"):
            draft.asked.update(f"{rank} {alpha} {targets}".split())
        if found is None or draft.knows("peft"):
            return
        named, switch = kind_of_adapters(draft, kind)
        draft.put("peft", named, found if switch is None else switch)
        if default_rank is not None:
            draft.default("lora_rank", default_rank)
        number(draft, "lora_rank", rank.split())
        number(draft, "lora_alpha", alpha.split())
        modules = draft.get(*targets.split())
        if modules is not None:
            put_targets(draft, modules)

    return step


def _holds(draft: Draft, key: str, rank: str) -> Found | None:
    """Return the key if it is switched on, or if `key=value` holds that value."""
    name, _, wanted = key.partition("=")
    if name in rank.split():
        found = draft.number(name)
        return found if found is not None and found.value > 0 else None
    if not wanted:
        return draft.true(name)
    found = draft.text(name)
    return found if found is not None and found.value.lower() == wanted else None


def starts_from(*keys: str) -> Callable[[Draft], None]:
    """Set the model whose weights one of these keys names."""

    def step(draft: Draft) -> None:
        found = draft.text(*keys)
        if found is not None:
            draft.start_trained()
            draft.describe(found.value, {})

    return step


def stated_objective(key: str, **more: str) -> Callable[[Draft], None]:
    """Set the objective from a key's word, one of `OBJECTIVES` or of `more`, else `other`."""

    def step(draft: Draft) -> None:
        found = draft.text(key)
        if found is not None:
            meaning = (OBJECTIVES | more).get(found.value.lower(), "other")
            draft.put("objective", meaning, found, text=_read_as(found, meaning, ""))

    return step
