"""The origin of each field of a recipe, the result of reading a file, and both in words.

The words are a line of assumptions with plausible alternatives, fixes in the keys of the trainer
whose file is judged (`warmup_steps: 400`), and a text table for the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.ground.flags import flags_of
from rksp.ground.text import short
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import optimizer_spec
from rksp.recipe_files.parse.document import Document

if TYPE_CHECKING:
    from rksp.documents.score import OriginReport


class OriginKind(StrEnum):
    """The kinds of origin of a field."""

    FILE = "file"
    FLAG = "flag"
    COMPUTED = "computed"  # from several things that were all said
    TRAINER = "trainer"  # the file is silent, and this is what the trainer then does
    UNASKED = "unasked"  # something that a run has only if somebody asks for it, and nobody did
    ASSUMED = "assumed"  # nobody said, or it was computed from something that nobody said
    UNKNOWN = "unknown"  # it stands in the file, and what it comes to does not


# Without these there is no answer, where a file gives them and rksp cannot tell what they are.
DECISIVE = (
    *("learning_rate", "optimizer", "objective", "batch_size", "sequence_length", "max_steps"),
    "peft",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of one field.

    Attributes:
        kind: The kind of origin.
        text: One phrase: the keys, the option, the trainer's default, or the computation.
        file: The file, if it states the field.
        line: Line of the first key, counted from one.
        keys: Dotted keys of the file that were read.
        assumes: Assumptions behind the value: fields of the recipe, or `devices`.
        by_name: The keys were understood by their names, and not by a trainer's reader.
    """

    kind: OriginKind
    text: str
    file: str | None = None
    line: int | None = None
    keys: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    by_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeField:
    """One field of the recipe, its value in rksp's units, and its origin."""

    name: str
    value: object
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A setting of the file that rksp does not read, and that may matter.

    Attributes:
        key: Its dotted key.
        line: Its line, if the format has lines.
        nearest: The known key that may have been meant; empty if none is near.
        why: How it changes the run, where rksp knows the key but does not model it.
        value: What stands there and could not be followed; empty where the key is not known.
    """

    key: str
    line: int | None = None
    nearest: str = ""
    why: str = ""
    value: str = ""

    def __str__(self) -> str:
        place = self.key if self.line is None else f"{self.key}, line {self.line},"
        if self.value:
            return f"{place} is not known: it is {self.value}"
        if self.why:
            return f"{place} is not modelled: {self.why}"
        hint = f": did you mean {self.nearest}?" if self.nearest else ""
        return f"{place} is not read{hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """The model that a file describes, in the words of `rksp.models.resolve.resolve`.

    Attributes:
        name: A model type, or the Hub id or path that the file names.
        overrides: Settings to change.
        notes: Differences from the file's model.
    """

    name: str
    overrides: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """What was read from one configuration file.

    Attributes:
        path: The file.
        trainer: The trainer, with the version whose defaults were read.
        fields: Every field of the recipe, in the order of `Recipe`.
        target: The model, if the file describes one that transformers knows.
        target_missing: Why there is no target.
        notes: Other notes for the user.
        understood: Number of the file's settings that were read.
        settings: Number of settings in the file.
        keys: Field -> the trainer's key that takes its value in rksp's units, where there is one.
        names_weights: The run starts from weights that the file names, not only from an
            architecture.
        devices: Number of devices, where the file, its launcher or the user says it.
        reader: Name of the reader; empty for a draft that no reader finished.
        document: What was read; `deepspeed` the DeepSpeed file that it names, or holds.
        unread: Settings that may matter and that rksp does not read.
    """

    path: Path
    trainer: str
    fields: tuple[RecipeField, ...]
    target: FileTarget | None
    target_missing: str
    notes: tuple[str, ...]
    understood: int
    settings: int
    keys: Mapping[str, str] = field(default_factory=dict)
    names_weights: bool = False
    devices: int | None = None
    reader: str = ""
    document: Document | None = field(default=None, repr=False, compare=False)
    deepspeed: Document | None = field(default=None, repr=False, compare=False)
    unread: tuple[Unread, ...] = ()

    def field(self, name: str) -> RecipeField:
        """Return the field of this name."""
        return next(f for f in self.fields if f.name == name)

    @property
    def unknown(self) -> dict[str, str]:
        """Field without which there is no answer → why it is not known, a clause."""
        fields = [f for f in self.fields if f.name in DECISIVE]
        return {f.name: f.origin.text for f in fields if f.origin.kind is OriginKind.UNKNOWN}

    def origins(self) -> dict[str, Origin]:
        """Return field → origin, for every field of the recipe."""
        return {f.name: f.origin for f in self.fields}

    def recipe(self) -> Recipe:
        """Return the recipe that was read.

        Raises:
            InputError: A value of the file is out of range.
        """
        said = {f.name: self._said(f) for f in self.fields}
        return Recipe.parse({f.name: f.value for f in self.fields}, said)

    def _said(self, field: RecipeField) -> str:
        if field.origin.kind is OriginKind.FLAG:
            return field.origin.text
        place = f"{self.path}:{field.origin.line}" if field.origin.line else str(self.path)
        keys = " and ".join(field.origin.keys) or field.name
        return f"{place}: {keys} (recipe field {field.name})"


_PHRASES = {
    "optimizer": "{}",
    "schedule": "the {} schedule",
    "warmup_steps": "{} steps of warm-up",
    "max_steps": "{} steps",
    "min_lr_ratio": "a final rate of {} of the peak",
    "adam_beta1": "β₁ {}",
    "adam_beta2": "β₂ {}",
    "adam_epsilon": "ε {}",
    "momentum": "momentum {}",
    "weight_decay": "weight decay {}",
    "max_grad_norm": "clipping at {}",
    "batch_size": "a batch of {}",
    "sequence_length": "sequences of {} tokens",
    "gradient_accumulation_steps": "{} accumulated",
    "precision": "{}",
    "muon_scale": "Muon's update in the scale {}",
    "decay_steps": "a decay over {} steps",
    "batch_ramp": "a batch ramp {}",
}


def flag_of(name: str) -> str:
    """Return the flag that sets a field of the recipe, or `devices`."""
    flag = flags_of(Recipe).get(name)
    return flag.name if flag is not None else f"--{name.replace('_', '-')}"


def used_in(values: Mapping[str, object]) -> frozenset[str]:
    """Return the fields that have an effect in this recipe; β₂ of plain SGD has none."""
    given = [name for name in ("learning_rate", "decay_steps") if values[name] is not None]
    optimizer, schedule = str(values["optimizer"]), str(values["schedule"])
    return frozenset([*given, *(name for name in values if _is_used(name, optimizer, schedule))])


@cache
def _is_used(name: str, optimizer: str, schedule: str) -> bool:
    spec = optimizer_spec(optimizer)
    meanings = {
        "learning_rate": False,
        "momentum": spec.family == "plain",
        "adam_beta1": spec.follow_adam != "none" or spec.family == "sign-like",
        "adam_beta2": spec.follow_adam != "none" or spec.family == "sign-like",
        "adam_epsilon": spec.follow_adam != "none",
        "muon_scale": spec.name == "muon",
        "min_lr_ratio": schedule != "constant",
        "decay_steps": schedule == "wsd",
        "decay_shape": schedule == "wsd",
        "decay_power": schedule == "polynomial",
        "decay_milestones": schedule == "step",
        "decay_factor": schedule == "step",
    }
    return meanings.get(name, True)


@cache
def left_out(name: str, is_used: bool) -> Origin:
    """Return the origin of an undecided field: assumed, unless the field then has no effect."""
    if not is_used and name != "learning_rate":
        return Origin(kind=OriginKind.UNASKED, text="no effect in this recipe")
    plain = {
        "gradient_accumulation_steps": "the batch is not divided by default",
        "learning_rate": "not given: rksp recommends one",
        "batch_ramp": "none by default",
        "rows": "only epochs need it",
        "peft": "all weights are trained by default",
        "z_loss": "no z-loss by default",
        "preference_beta": "the trainer's own",
        "kl_coefficient": "the trainer's own",
        "generations": "the trainer's own",
        "clip_range": "the trainer's own",
        "lora_rank": "no adapters",
        "lora_alpha": "no adapters",
        "lora_targets": "no adapters",
        "objective": "language modelling by default",
        "decay_steps": "the schedule decays over the whole run by default",
        "decay_shape": "linear by default",
        "decay_power": "linear by default",
    }
    text = plain.get(name)
    return Origin(kind=OriginKind.UNASKED, text=text) if text else assumed(name)


def assumed(name: str, why: str = "") -> Origin:
    """Return the origin of a field that nobody decided."""
    text = why or f"default of rksp; give {flag_of(name)}"
    return Origin(kind=OriginKind.ASSUMED, text=text, assumes=(name,))


def assumed_line(recipe: Recipe, origins: Mapping[str, Origin]) -> str:
    """Return a line with all assumptions and the options that replace them; may be empty.

    The consequences of an assumption follow it: `one replica, so a batch of 16`.
    """
    return line_of(assumptions(dict(recipe), origins))


def line_of(parts: Mapping[str, str]) -> str:
    """Return the line of assumptions in words by field; empty if there are none."""
    if not parts:
        return ""
    said = "; ".join(part for part in parts.values() if part)
    return f"assumed: {said}; pass {', '.join(map(flag_of, parts))}"


def assumptions(values: Mapping[str, object], origins: Mapping[str, Origin]) -> dict[str, str]:
    """Return each assumption in words by the field (or `devices`) that would replace it.

    What moves the verdict most comes first.
    """
    rests: dict[str, list[str]] = {}
    used = used_in(values)
    for name, origin in origins.items():
        if origin.kind is OriginKind.ASSUMED and name in used:
            for root in origin.assumes:
                rests.setdefault(root, []).append(name)
    parts: dict[str, str] = {}
    said: set[str] = set()
    for root in sorted(rests, key=_weight):
        follows = [name for name in rests[root] if name != root and name not in said]
        said.update(follows)
        head = "one replica" if root == "devices" else phrase(root, values[root])
        tail = ", ".join(phrase(name, values[name]) for name in follows)
        parts[root] = f"{head}, so {tail}" if tail else head
    return parts


def _weight(root: str) -> tuple[int, str]:
    order = ("devices", "batch_size", "max_steps", "warmup_steps", "sequence_length", "optimizer")
    return (order.index(root) if root in order else len(order), root)


def phrase(name: str, value: object) -> str:
    """Return a field's value in words: `1000 steps`, `no clipping`."""
    if name == "max_grad_norm" and value is None:
        return "no clipping"
    if name == "warmup_steps" and value == 0:
        return "no warm-up"
    shown = short(value, 6) if isinstance(value, float) else str(value)
    return _PHRASES.get(name, name.replace("_", " ") + " {}").format(shown)


_GROUP = re.compile(r"\(((?:--[a-z0-9-]+ [^\s)]+ ?)+)\)")
_LOWER = re.compile(r"(ower the learning rate to )([0-9][0-9.e+-]*[0-9])")
_FIELDS = {flag.name.removeprefix("--set "): name for name, flag in flags_of(Recipe).items()}


def _pairs(options: str) -> Iterator[tuple[str, str]]:
    words = options.replace("--set ", "").replace("=", "= ").split()
    return ((_FIELDS.get(flag, ""), x) for flag, x in zip(words[::2], words[1::2], strict=True))


def settings_in(fix: str) -> dict[str, str]:
    """Return field -> value of the first change that a fix names; empty where it names none."""
    group, lower = _GROUP.search(fix), _LOWER.search(fix)
    if lower is not None and (group is None or lower.start() < group.start()):
        return {} if "for adapters" in fix else {"learning_rate": lower[2]}
    named = _pairs(group[1]) if group is not None else ()
    return {field: value for field, value in named if field}


def in_own_words(fix: str, origins: Mapping[str, Origin], keys: Mapping[str, str]) -> str:
    """Return a fix with the trainer's keys where it names options of rksp.

    Args:
        fix: One sentence of a check.
        origins: Field -> where it comes from; a typed one keeps the option that was typed.
        keys: Field -> the trainer's key that takes the value in rksp's units.
    """

    def group(match: re.Match[str]) -> str:
        said = (own_setting(field, value, origins, keys) for field, value in _pairs(match[1]))
        known = [one for one in said if one]
        return f"({', '.join(known)})" if known else match[0]

    def lower(match: re.Match[str]) -> str:
        said = own_setting("learning_rate", match[2], origins, keys)
        return f"{match[0]} ({said})" if said else match[0]

    return _LOWER.sub(lower, _GROUP.sub(group, fix))


def own_setting(
    field: str, value: str, origins: Mapping[str, Origin], keys: Mapping[str, str]
) -> str | None:
    """Return `key: value` as the trainer's file has it; None where no key takes the value."""
    origin = origins.get(field)
    if origin is None or origin.kind is OriginKind.FLAG:
        return None
    is_as_written = len(origin.keys) == 1 and origin.text == origin.keys[0]
    key = origin.keys[0] if is_as_written else keys.get(field)
    return None if key is None else f"{key}: {plain(value)}"


def plain(value: str) -> str:
    """Write a number so that every YAML reader takes it for one: 0.001, which 1e-3 is not."""
    return f"{float(value):.12f}".rstrip("0").rstrip(".") if "e" in value else value


_MOST = 4  # stages of a batch ramp that are written out


def recipe_rows(
    values: Mapping[str, object], origins: Mapping[str, Origin | OriginReport]
) -> list[tuple[str, str, str]]:
    """Return field, value and origin of every field that the recipe uses.

    Optional fields that nobody set are left out.

    Args:
        values: Field of the recipe → value.
        origins: Field → origin, with its text in full.
    """
    return [
        (name, shown(values[name]), origin.text)
        for name, origin in origins.items()
        if origin.kind != OriginKind.UNASKED
    ]


def recipe_table(
    values: Mapping[str, object], origins: Mapping[str, Origin | OriginReport]
) -> Iterator[str]:
    """Yield the lines of a table with one row per field; see `recipe_rows`."""
    rows = [("field", "value", "from"), *recipe_rows(values, origins)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, text in rows:
        yield f"{name.ljust(widths[0])}  {value.ljust(widths[1])}  {text}".rstrip()


def in_full(origin: Origin) -> Origin:
    """Return an origin whose text says all of it, as tables and reports show it."""
    place = f" (line {origin.line})" if origin.line else ""
    keys = " and ".join(origin.keys)
    if place and origin.text.startswith(keys):
        text = f"{keys}{place}{origin.text[len(keys) :]}"
    else:
        text = f"{origin.text}{place}"
    prefix = {OriginKind.ASSUMED: "assumed: ", OriginKind.UNKNOWN: "unknown: "}.get(origin.kind, "")
    text = f"{prefix}{text}{', found by name' if origin.by_name else ''}"
    return replace(origin, text=text)


def shown(value: object) -> str:
    """Format a value of a recipe; None is off."""
    if value is None:
        return "off"
    if isinstance(value, tuple) and len(value) > _MOST and isinstance(value[0], tuple):
        return f"{value[0][1]} → {value[-1][1]} in {len(value)} stages"  # a batch ramp
    if isinstance(value, tuple):
        return ", ".join(shown(part) for part in value) or "none"
    if not isinstance(value, float):
        return str(value)
    return short(value, 10) if abs(value) < 1 else f"{value:.10g}"  # 10000 may be typed, 10,000 not
