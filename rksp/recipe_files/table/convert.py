"""From a trainer's words and units to rksp's: each function sets fields of a draft.

A converter takes the draft, the field and the keys to look under, and sets the field if one of
them is there. A step takes the draft and its settings, of which keys are separated by blanks, and
sets what several keys decide together.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Found, FoundNumber
from rksp.recipe_files.parse.values import Parsed, Section, Unresolved, read_number
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import objective_of, optimizer_of, precision_of, schedule_of

Converter = Callable[[Draft, str, Sequence[str]], None]

_DURATION = re.compile(r"^([0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Z]*)$")
_NUMBERS = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?")
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_GPT2 = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def number(draft: Draft, name: str, keys: Sequence[str]) -> None:
    """Set a field to a number, unchanged."""
    found = draft.number(*keys)
    if found is not None:
        draft.put(name, found.value, found)
    else:
        draft.stands_elsewhere(name, keys)


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


def clip_by(draft: Draft, keys: str, *, kind: str) -> None:
    """Set the clipping norm, off by default, where `kind` is `norm` or absent; else there is none.

    Args:
        draft: The draft.
        keys: Keys of the norm.
        kind: Key that says what is clipped.
    """
    clipped = draft.text_or("norm", kind)
    if clipped.value != "norm" and draft.number(*keys.split()) is not None:
        draft.note(f"Gradients are clipped by {clipped.value}, which rksp reads as no clipping.")
        draft.put("max_grad_norm", None, clipped, text=f"{clipped.value} is no norm")
    else:
        clip(draft, "max_grad_norm", keys.split())
    draft.default("max_grad_norm", None)


def put_optimizer(draft: Draft, found: Found) -> None:
    """Set the optimizer from its name; one that rksp does not have is `other`."""
    ours, loss = optimizer_of(str(found.value))
    draft.put("optimizer", ours or "other", found, text=_read_as(found, ours or "other", loss))


def put_fixed(draft: Draft, off: Found) -> None:
    """Set a rate that stays as it is, as nanoGPT's does where `decay_lr` is off."""
    draft.put("schedule", "constant", off)
    draft.put("warmup_steps", 0, off, text=f"{off.key} off means no warm-up either")


def put_schedule(draft: Draft, found: Found) -> None:
    """Set the schedule from its name; one that rksp does not have leaves it assumed."""
    ours, loss = schedule_of(str(found.value))
    if ours is None:
        why = f"{found.key} is {found.value!r}, which rksp does not have; give --schedule"
        draft.assume("schedule", why, found)
    else:
        draft.put("schedule", ours, found, text=_read_as(found, ours, loss))


def put_precision(draft: Draft, found: Found, *, is_pure: bool = False, text: str = "") -> None:
    """Set the precision from its name; one that rksp does not have counts as fp8, not judged.

    With `is_pure` the weights are kept in the 16 bits that the name says.
    """
    ours = precision_of(str(found.value))
    if is_pure and ours in ("bf16", "fp16"):
        ours = f"{ours}-pure"
    if ours is None:
        text = f"{found.value}, which rksp does not have, read as fp8"
    draft.put("precision", ours or "fp8", found, text=text)


def _read_as(found: Found, ours: str, loss: str) -> str:
    is_same = str(found.value).rsplit(".", 1)[-1].lower() == ours
    text = "" if is_same else f"{found.value} read as {ours}"
    return f"{text}, {loss}" if loss else text


def _named(put: Callable[[Draft, Found], None]) -> Converter:
    def convert(draft: Draft, name: str, keys: Sequence[str]) -> None:
        found = draft.text(*keys)
        if found is not None:
            put(draft, found)

    return convert


def meaning(meanings: Mapping[str, str]) -> Converter:
    """Set a field from a word of the file; a switch that is on has the word `true`."""

    def convert(draft: Draft, name: str, keys: Sequence[str]) -> None:
        found = draft.text(*keys)
        if found is not None and found.value.lower() in meanings:
            draft.put(name, meanings[found.value.lower()], found)

    return convert


# Set a field from its name in the file, to the nearest that rksp has.
optimizer, schedule, precision = map(_named, (put_optimizer, put_schedule, put_precision))
pure_precision = _named(partial(put_precision, is_pure=True))


def put_decay_until(draft: Draft, end: int, found: Found | None) -> None:
    """Set the decay from the end of the warm-up to a step."""
    span = max(1, end - int(draft.value("warmup_steps")))
    draft.put("decay_steps", span, found, text=f"{end} less the warm-up")


def switches(draft: Draft, precisions: Mapping[str, str]) -> None:
    """Set the precision from boolean keys, the first that is on: `{"bf16": "bf16"}`."""
    draft.asked.update(precisions)
    for key, ours in precisions.items():
        found = draft.true(key)
        if found is not None:
            draft.put("precision", ours, found)
            return


def kept_in(draft: Draft, keys: str) -> None:
    """Set a pure precision where the weights are kept in 16 bits."""
    weights = draft.text(*keys.split())
    if weights is not None and precision_of(weights.value) in ("bf16", "fp16"):
        put_precision(draft, weights, is_pure=True)


def betas(draft: Draft, keys: str) -> None:
    """Set both of Adam's betas from a pair, a list or text such as `(0.9, 0.98)`."""
    found = draft.get(*keys.split())
    if found is None or found.value == "auto":
        return
    pair = found.value
    if isinstance(pair, str):
        pair = [float(part) for part in _NUMBERS.findall(pair)]
    if not isinstance(pair, list) or len(pair) < 2:
        raise InputError(
            f"{draft.where(found)}: {found.key} is {found.value!r}, not a pair of numbers."
        )
    for name, value in zip(("adam_beta1", "adam_beta2"), pair, strict=False):
        if isinstance(value, Unresolved):
            draft.unknown(name, dataclasses.replace(found, value=value))
        else:
            draft.put(name, value, found)


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


def put_warmup(draft: Draft, found: FoundNumber, rounding: Callable[[float], int] = round) -> None:
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


# Schedules that get no warm-up at all (transformers/optimization.py, get_scheduler).
WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")


def ignores_warmup(draft: Draft, key: str) -> bool:
    """Set no warm-up if the schedule under `key` is one that ignores it."""
    kind = draft.text(key)
    if kind is None or kind.value not in WITHOUT_WARMUP:
        return False
    draft.put("warmup_steps", 0, kind, text=f"{kind.value} ignores the warm-up")
    return True


def warmup_by(rounding: Callable[[float], int]) -> Converter:
    """Set the warm-up from steps or a share of the run, which the trainer rounds like this."""

    def convert(draft: Draft, name: str, keys: Sequence[str]) -> None:
        found = draft.number(*keys)
        if found is not None:
            put_warmup(draft, found, rounding)

    return convert


warmup, warmup_cut = warmup_by(round), warmup_by(int)


def warmup_share(draft: Draft, share: float, *, most: float = math.inf) -> None:
    """Set a trainer's default warm-up, a share of the run, which is at most so many steps."""
    total = int(draft.value("max_steps"))
    text = f"{share:g} of {total} steps"
    draft.default("warmup_steps", min(int(share * total), most), text, after=("max_steps",))


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


def lora(
    draft: Draft,
    on: str,
    *,
    rank: str,
    alpha: str,
    targets: str,
    kind: str = "lora",
    default_rank: int | None = None,
) -> None:
    """Set the adapters' fields where one of the keys `on` is there and not switched off.

    Args:
        draft: The draft.
        on: Keys that switch adapters on; one named `key=value` must hold that value, and one that
            is the rank's must be above zero.
        rank: Keys of the rank.
        alpha: Keys of the scale.
        targets: Keys of the modules.
        kind: The kind of adapters to set.
        default_rank: The trainer's own rank.
    """
    found = next((f for key in on.split() if (f := _holds(draft, key, rank)) is not None), None)
    if draft.knows("peft"):
        return
    if found is None:
        draft.asked.update(f"{rank} {alpha} {targets}".split())
        return
    named, switch = kind_of_adapters(draft, kind)
    draft.put("peft", named, found if switch is None else switch)
    put_lora(draft, rank, alpha, targets, default_rank)


def put_lora(
    draft: Draft, rank: str, alpha: str, targets: str, default_rank: int | None = None
) -> None:
    """Set rank, scale and modules of adapters from these keys, and the trainer's own rank."""
    number(draft, "lora_rank", rank.split())
    if default_rank is not None:
        draft.default("lora_rank", default_rank)
    number(draft, "lora_alpha", alpha.split())
    found = draft.get(*targets.split())
    if found is not None:
        listed = found.value if isinstance(found.value, list) else str(found.value).split(",")
        draft.put("lora_targets", tuple(str(part).strip() for part in listed), found)


def _holds(draft: Draft, key: str, rank: str) -> Found | None:
    name, _, wanted = key.partition("=")
    if name in rank.split():
        found = draft.number(name)
        return found if found is not None and found.value > 0 else None
    if not wanted:
        return draft.true(name)
    word = draft.text(name)
    return word if word is not None and word.value.lower() == wanted else None


def note(draft: Draft, keys: str, *, text: str) -> None:
    """Add a note for the user where one of these keys has a value."""
    if draft.text(*keys.split()) is not None:
        draft.note(text)


def no_target(draft: Draft, sentence: str) -> None:
    """Record why no file of this trainer describes a model that rksp can build."""
    draft.no_target(sentence)


def stated_objective(draft: Draft, key: str, **more: str) -> None:
    """Set the objective from a key's word, one of the thesaurus or of `more`, else `other`."""
    found = draft.text(key)
    if found is not None:
        word = found.value.lower()
        meaning = more.get(word) or objective_of(word) or "other"
        draft.put("objective", meaning, found, text=_read_as(found, meaning, ""))


def devices(draft: Draft, keys: str) -> None:
    """Set the number of devices: the user's, else the product of these keys."""
    first, *others = (draft.get(key) for key in keys.split())
    if first is not None and _many(first.value) >= 1 and not draft.devices:
        found = [first, *(one for one in others if one is not None)]
        draft.devices = math.prod(max(1, _many(one.value)) for one in found)
        draft.devices_text = " × ".join(one.key for one in found)


def _many(value: Parsed) -> int:
    """Return how many devices are meant: a number, or a list such as `0,1`; 0 for `auto`."""
    if isinstance(value, str) and "," in value.strip(", "):
        return len(value.strip(", ").split(","))
    count = read_number(str(value))
    is_one = count is not None and math.isfinite(count)
    return len(value) if isinstance(value, list) else int(count or 0) if is_one else 0


def _product(found: Sequence[FoundNumber | None]) -> int:
    counts = [max(1, int(one.value)) for one in found if one is not None]
    return math.prod(counts)


def batch(
    draft: Draft,
    micro: str,
    accumulation: str = "",
    *,
    whole: str = "",
    tokens: str = "",
    shared: str = "",
    default: int | None = None,
) -> None:
    """Set the batch from the file's full batch, or from micro × accumulation × replicas.

    A file seldom states the number of devices; then one replica is assumed.

    Args:
        draft: The draft.
        micro: Keys of the sequences per forward pass and device, separated by blanks.
        accumulation: Keys of the forward passes per optimizer step.
        whole: Keys of the sequences per optimizer step.
        tokens: Keys of the tokens per optimizer step; the length must be set before.
        shared: Keys whose product is the number of devices that share one replica of the model.
        default: The trainer's own micro-batch.
    """
    total, counted, text = draft.number(*whole.split()), draft.number(*tokens.split()), ""
    if counted is not None and counted.value > 0:
        length = int(draft.value("sequence_length"))
        total = dataclasses.replace(counted, value=max(1, int(counted.value) // length))
        text = f"{counted.value} tokens / {length}"
    size = draft.number(*micro.split())
    steps = draft.number(*accumulation.split())
    copies = max(1, (draft.devices or 1) // _product([draft.number(key) for key in shared.split()]))
    if total is None or total.value <= 0:
        keys = (micro, accumulation)
        is_open = any(draft.stands_elsewhere("batch_size", key.split()) for key in keys)
        if not is_open and (size is not None or default is not None):
            put_batch(draft, size, steps, copies, default or 1)
        return
    draft.put("batch_size", int(total.value), total, text=text)
    if steps is not None and steps.value >= 1:
        draft.put("gradient_accumulation_steps", int(steps.value), steps)
    elif size is not None and size.value >= 1 and draft.devices:
        count = max(1, int(total.value) // (int(size.value) * copies))
        text = f"{total.value} / ({size.value} × {copies} replicas)"
        draft.put("gradient_accumulation_steps", count, total, size, text=text)


def put_batch(
    draft: Draft, size: FoundNumber | None, steps: FoundNumber | None, copies: int, default: int = 1
) -> None:
    """Set the batch from a micro-batch (else the trainer's default) and accumulation.

    Devices that share a sequence have one replica of the batch together.
    """
    shared = draft.amount("sequence_parallel_size", "context_parallel_size", default=1)
    copies = max(1, copies // max(1, int(shared)))
    count = int(size.value) if size is not None else default
    accumulated = max(1, int(steps.value)) if steps is not None else 1
    if draft.devices:
        known = f"{copies} replica{'s' if copies > 1 else ''} ({draft.devices_text})"
    else:
        known = "1 replica (assumed: give --devices)"
    text = f"{count:g} × {accumulated} accumulated × {known}"
    stated = () if size is None else (size, steps)  # a default gives way to a batch of any name
    draft.put("batch_size", count * accumulated * copies, *stated, text=text, after=("devices",))
    if steps is not None:
        draft.put("gradient_accumulation_steps", accumulated, steps)


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
    unit = {"T": "tok", "tokens": "tok"}.get(unit, unit)
    least = 1 if name == "max_steps" else 0
    if unit in ("ba", "iter", "step", "steps"):
        draft.put(name, max(least, round(amount)), found)
    elif unit in ("sp", "tok"):
        after = ("batch_size",) if unit == "sp" else ("batch_size", "sequence_length")
        divisor = math.prod(int(draft.value(field)) for field in after)
        text = f"{amount:g} {'samples' if unit == 'sp' else 'tokens'} / {divisor} a step"
        draft.put(name, max(least, round(amount / divisor)), found, text=text, after=after)
    elif unit == "dur":
        total = int(draft.value("max_steps"))
        text = f"{amount:g} of {total} steps"
        draft.put(name, round(amount * total), found, text=text, after=("max_steps",))
    elif unit == "ep":
        put_epochs(draft, name, amount, found, found.key)
    else:
        draft.assume(name, f"{found.key}: {unit!r} is not a unit of time that rksp knows", found)


def epochs(draft: Draft, key: str, default: float | None = None) -> None:
    """Set `max_steps` from epochs, by default so many, if no number of steps is known."""
    found = draft.number(key)
    if not draft.knows("max_steps") and (found is not None or default is not None):
        count = None if found is None else found.value
        put_epochs(draft, "max_steps", count, found, key, default)


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


_Setting = TypeVar("_Setting")


def settings_in(section: Section, keys: Mapping[str, str]) -> dict[str, object]:
    """Return settings of transformers from a section: the first of its `keys` that is on."""
    values = {ours: map(section.get, known.split()) for ours, known in keys.items()}
    return {ours: next(filter(None, found), None) for ours, found in values.items()}


def read_shape(draft: Draft, **keys: str) -> dict[str, int]:
    """Read the sizes of a model; without depth, width and heads there is no target.

    Args:
        draft: The draft.
        keys: Keys of the file by the setting of transformers, separated by blanks.

    Returns:
        A whole number for each setting that is given; the heads also count as key-value heads if
        those are asked for and not given. Empty if there is no target.
    """
    counts = {name: draft.count(*key.split()) for name, key in keys.items()}
    if any(counts[name] is None for name in _NEEDED):
        draft.no_target("the file does not give depth, width and heads; name a TARGET.")
        return {}
    if "num_key_value_heads" in counts and counts["num_key_value_heads"] is None:
        counts["num_key_value_heads"] = counts["num_attention_heads"]
    return {name: count for name, count in counts.items() if count is not None}


def as_gpt2(settings: Mapping[str, _Setting]) -> dict[str, _Setting]:
    """Rename sizes as GPT-2's configuration has them; other settings stay."""
    return {_GPT2.get(name, name): value for name, value in settings.items()}
