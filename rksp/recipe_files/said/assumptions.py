"""The assumptions about a recipe, in one line, and plausible alternatives to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rksp.ground.flags import flags_of
from rksp.ground.text import short
from rksp.optimizers.table import optimizer_spec
from rksp.recipe import Recipe
from rksp.recipe_files.said.origin import Origin, OriginKind

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


def is_used(name: str, values: Mapping[str, object]) -> bool:
    """Return True if a field has an effect in this recipe; β₂ of plain SGD has none."""
    if name in ("learning_rate", "decay_steps") and values[name] is not None:
        return True
    return _is_used(name, str(values["optimizer"]), str(values["schedule"]))


@cache
def _is_used(name: str, optimizer: str, schedule: str) -> bool:
    """Return True if a field that has no value of its own has an effect."""
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


def left_out(name: str, values: Mapping[str, object]) -> Origin:
    """Return the origin of an undecided field: assumed, unless the field then has no effect."""
    return _left_out(name, is_used(name, values))


@cache
def _left_out(name: str, is_used: bool) -> Origin:
    if not is_used and name != "learning_rate":
        return Origin(kind=OriginKind.UNASKED, text="no effect in this recipe")
    plain = {
        "gradient_accumulation_steps": "the batch is not divided by default",
        "learning_rate": "not given: rksp recommends one",
        "batch_ramp": "none by default",
        "rows": "only epochs need it",
        "peft": "all weights are trained by default",
        "z_loss": "no z-loss by default",
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
    for name, origin in origins.items():
        if origin.kind is OriginKind.ASSUMED and is_used(name, values):
            for root in origin.assumes:
                rests.setdefault(root, []).append(name)
    said: set[str] = set()
    return {root: _part(root, rests[root], values, said) for root in sorted(rests, key=_weight)}


def _part(root: str, names: list[str], values: Mapping[str, object], said: set[str]) -> str:
    follows = [name for name in names if name != root and name not in said]
    said.update(follows)
    head = "one replica" if root == "devices" else phrase(root, values[root])
    tail = ", ".join(phrase(name, values[name]) for name in follows)
    return f"{head}, so {tail}" if tail else head


def _weight(root: str) -> tuple[int, str]:
    """Return the sort key of an assumption: what moves the verdict most comes first."""
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
