"""Lightning's command line (`LightningCLI`): YAML whose parts name classes and their arguments.

The model and the data are the user's own classes, so that rksp reads what their arguments are
usually called. A model that builds its optimizer itself leaves the optimizer assumed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Document, Found
from rksp.recipe_files.table.batch import batch
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    lowest_rate,
    number,
    precision,
    put_optimizer,
    put_schedule,
    put_warmup,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import put_epochs, put_milestones
from rksp.recipe_files.table.reader import Marks, Reader, Row

_MODEL = ("model.init_args", "model")
_OPTIMIZERS = ("optimizer", *(f"{part}.optimizer" for part in _MODEL))
_SCHEDULERS = ("lr_scheduler", *(f"{part}.lr_scheduler" for part in _MODEL))
_DATA = ("data.init_args", "data", *_MODEL)
_EPOCHS = 1000  # Lightning's own, without max_epochs and max_steps
_COMMANDS = ("fit", "validate", "test", "predict")


def is_subcommanded(document: Document) -> bool:
    """Tell whether the settings stand under `fit`, as in a file given before the subcommand."""
    inner = document.data.get("fit")
    return isinstance(inner, Mapping) and "trainer" in inner and "trainer" not in document.data


def of_subcommand(document: Document) -> Document:
    """Return a document with the settings of `fit` at the top, beside those of no subcommand."""
    data = {key: value for key, value in document.data.items() if key not in _COMMANDS}
    lines = {}
    for key, line in document.lines.items():
        command, _, inner = key.partition(".")
        if command not in _COMMANDS:
            lines[key] = line
        elif command == "fit" and inner:
            lines[inner] = line
    return dataclasses.replace(document, data=data | document.data["fit"], lines=lines)


def _keys(parts: tuple[str, ...], *names: str) -> str:
    return " ".join(f"{part}.{name}" for part in parts for name in names)


def _arguments(parts: tuple[str, ...], *names: str) -> str:
    """Return the keys of a class's arguments: under `init_args`, or beside each other."""
    return " ".join(_keys((f"{part}.init_args", part), *names) for part in parts)


_RATE = f"{_arguments(_OPTIMIZERS, 'lr')} {_keys(_MODEL, 'lr', 'learning_rate')}"
_WARMUP = ("num_warmup_steps", "warmup_steps")
_LENGTH = (
    "max_length",
    "max_seq_length",
    "max_seq_len",
    "seq_len",
    "sequence_length",
)


def _devices(draft: Draft) -> None:
    """Set the number of devices from a count, a list of indices or text such as `0,1`."""
    found, nodes = draft.get("trainer.devices"), draft.count("trainer.num_nodes", default=1)
    if found is None or draft.devices:
        return
    value = found.value.strip(", ").split(",") if isinstance(found.value, str) else found.value
    if isinstance(value, list) and (len(value) > 1 or not isinstance(found.value, str)):
        count = len(value)
    else:
        text = str(value[0] if isinstance(value, list) else value)
        count = int(text) if text.isdecimal() else 0  # auto, and -1: all that there are
    if count > 0:
        draft.devices = count * max(1, nodes)
        draft.devices_text = "trainer.devices" + (" × trainer.num_nodes" if nodes > 1 else "")


def _class(draft: Draft, parts: tuple[str, ...]) -> Found | None:
    """Return the class that a part names, as `class_path` or as plain text."""
    keys = (key for part in parts for key in (f"{part}.class_path", part))
    return next((found for key in keys if (found := draft.text(key)) is not None), None)


def _optimizer(draft: Draft) -> None:
    """Set the optimizer and torch's defaults for it; the model's code may decide it instead."""
    found = _class(draft, _OPTIMIZERS)
    if found is None:
        draft.assume("optimizer", "the model's code builds it; give --optimizer")
        return
    put_optimizer(draft, found)
    package, _, name = found.value.rpartition(".")
    if package not in ("", "torch.optim"):
        return
    number(draft, "momentum", _arguments(_OPTIMIZERS, "momentum").split())
    draft.default("momentum", 0.0)
    if draft.number(*_RATE.split()) is None:
        draft.default("learning_rate", 1e-3)
    if draft.number(*_arguments(_OPTIMIZERS, "weight_decay").split()) is None:
        draft.default("weight_decay", 0.01 if name == "AdamW" else 0.0)
    if draft.get(*_arguments(_OPTIMIZERS, "betas").split()) is None:
        draft.default("adam_beta1", 0.9)
        draft.default("adam_beta2", 0.999)
    if draft.number(*_arguments(_OPTIMIZERS, "eps").split()) is None:
        draft.default("adam_epsilon", 1e-8)


def _clip(draft: Draft) -> None:
    kind = draft.text("trainer.gradient_clip_algorithm")
    if kind is not None and kind.value == "value":
        draft.note("gradient_clip_algorithm: each number is clipped, which rksp reads as no clip.")
        draft.put("max_grad_norm", None, kind, text="value is no norm")
        return
    clip(draft, "max_grad_norm", ["trainer.gradient_clip_val"])
    draft.default("max_grad_norm", None)


def _steps(draft: Draft) -> None:
    """Set the length: the first of `max_steps` and `max_epochs` that the run reaches."""
    steps, rounds = draft.number("trainer.max_steps"), draft.number("trainer.max_epochs")
    limit = draft.get("trainer.limit_train_batches")
    is_limited = limit is not None and isinstance(limit.value, int) and limit.value > 0
    if rounds is not None and rounds.value > 0 and limit is not None and is_limited:
        micro = int(draft.value("gradient_accumulation_steps"))
        each = math.ceil(limit.value / micro)
        count, text = each * int(rounds.value), f"{each} a pass × {rounds.value:g} passes"
        if steps is None or not 0 < steps.value < count:
            draft.put("max_steps", count, limit, rounds, text=text)
            return
    if steps is not None and steps.value > 0:
        draft.put("max_steps", steps.value, steps)
    elif rounds is not None and rounds.value < 0:
        draft.assume("max_steps", "trainer.max_epochs is -1, without an end", rounds)
    else:
        count = None if rounds is None else rounds.value
        put_epochs(draft, "max_steps", count, rounds, "trainer.max_epochs", _EPOCHS)


def _schedule(draft: Draft) -> None:
    """Set the schedule; a scheduler of torch is stepped once an epoch by Lightning's command."""
    found = _class(draft, _SCHEDULERS)
    if found is None:
        if _class(draft, ("optimizer",)) is None:
            draft.assume("schedule", "the model's code builds it; give --schedule")
        draft.default("schedule", "constant")
        return
    name, argument = found.value.rpartition(".")[2], _scheduler_argument(draft)
    if name == "OneCycleLR":
        _one_cycle(draft, found)
    elif name in ("LinearLR", "ConstantLR"):
        draft.assume("schedule", f"{found.key} is {name}, which rises; give --schedule", found)
    else:
        put_schedule(draft, found)
    if name == "PolynomialLR":
        number(draft, "decay_power", _arguments(_SCHEDULERS, "power").split())
        draft.default("min_lr_ratio", 0.0)
    elif name == "CosineAnnealingLR":
        lowest_rate(draft, "min_lr_ratio", _arguments(_SCHEDULERS, "eta_min").split())
        draft.default("min_lr_ratio", 0.0)
        span = argument("T_max")
        ends = [draft.number(f"trainer.{key}") for key in ("max_epochs", "max_steps")]
        if span is not None and span.value not in [end.value for end in ends if end is not None]:
            draft.note(f"{span.key} is {span.value:g}; rksp takes the decay to end with the run.")
    elif name == "ExponentialLR":
        gamma, rounds = argument("gamma"), draft.number("trainer.max_epochs")
        if gamma is not None and rounds is not None and rounds.value > 0:
            share = float(f"{gamma.value**rounds.value:.6g}")
            text = f"{gamma.value:g}^{rounds.value:g}"
            draft.put("min_lr_ratio", share, gamma, rounds, text=text)
    elif name in ("StepLR", "MultiStepLR"):
        _milestones(draft, found)


def _scheduler_argument(draft: Draft):
    return lambda *names: draft.number(*_arguments(_SCHEDULERS, *names).split())


def _one_cycle(draft: Draft, found: Found) -> None:
    """Set torch's one cycle: a share of the run up, a cosine or a line down."""
    argument = _scheduler_argument(draft)
    kind = draft.text(*_arguments(_SCHEDULERS, "anneal_strategy").split())
    is_line = kind is not None and kind.value == "linear"
    draft.put("schedule", "linear" if is_line else "cosine", found, kind, text="one cycle")
    peak, share = argument("max_lr"), argument("pct_start")
    if peak is not None:
        draft.put("learning_rate", peak.value, peak)
    start, end = argument("div_factor"), argument("final_div_factor")
    last = 1 / ((start.value if start else 25) * (end.value if end else 1e4))
    draft.put("min_lr_ratio", last, start, end, text="1 / (div_factor × final_div_factor)")
    put_warmup(draft, share or Found(key="pct_start", value=0.3, line=found.line))


def _milestones(draft: Draft, found: Found) -> None:
    """Set the epochs after which the rate falls by `gamma`, 0.1 if it is not given."""
    argument = _scheduler_argument(draft)
    listed = draft.get(*_arguments(_SCHEDULERS, "milestones").split())
    every, rounds = argument("step_size"), draft.number("trainer.max_epochs")
    if rounds is None or rounds.value <= 0 or (listed is None and every is None):
        draft.assume("decay_milestones", "they count epochs; give --decay-milestones", found)
    elif listed is not None:
        put_milestones(draft, listed.value, rounds.value, listed)
    else:
        each = definite(every).value
        points = [each * (i + 1) for i in range(int((rounds.value - 1) // each))]
        put_milestones(draft, points, rounds.value, every)
    number(draft, "decay_factor", _arguments(_SCHEDULERS, "gamma").split())


def _warmup(draft: Draft) -> None:
    keys = f"{_arguments(_SCHEDULERS, *_WARMUP)} {_keys(_MODEL, *_WARMUP)}"
    number(draft, "warmup_steps", keys.split())
    if _class(draft, ("optimizer", *_SCHEDULERS)) is not None:
        draft.default("warmup_steps", 0)


def _model(draft: Draft) -> None:
    """Set the model from the Hub's name, where the class takes one."""
    if draft.text("ckpt_path") is not None:
        draft.note("ckpt_path: the run continues from a checkpoint, which rksp does not read.")
    found = draft.text("model.class_path")
    names = ("model_name_or_path", "pretrained_model_name_or_path")
    named = draft.text(*_keys(_MODEL, *names).split())
    if named is not None:
        draft.start_trained()
        draft.describe(named.value, {}, f"{named.key}: it starts from those weights.")
        return
    what = found.value if found is not None else "model"
    draft.no_target(f"{what} is the run's own class; name the same model as TARGET.")


READER = Reader(
    name="lightning",
    title="Lightning",
    version="2.6",
    source="Lightning-AI/pytorch-lightning, src/lightning/pytorch/{cli,trainer}; torch.optim",
    written={"max_steps": "trainer.max_steps", "max_grad_norm": "trainer.gradient_clip_val"},
    marks=(
        Marks(
            all="trainer",
            some="model.class_path data.class_path optimizer.class_path lr_scheduler.class_path",
            none="trainer._target_ model._target_ exp_manager algorithm",
        ),
        Marks(
            all="trainer seed_everything",
            some="model data optimizer.lr",
            none="trainer._target_ model._target_ exp_manager algorithm",
        ),
    ),
    steps=(
        _devices,
        _optimizer,
        Row("learning_rate", _RATE),
        betas(*_arguments(_OPTIMIZERS, "betas").split()),
        Row("adam_epsilon", _arguments(_OPTIMIZERS, "eps")),
        Row(
            "weight_decay",
            f"{_arguments(_OPTIMIZERS, 'weight_decay')} {_keys(_MODEL, 'weight_decay')}",
        ),
        _clip,
        Row("sequence_length", _keys(_DATA, *_LENGTH)),
        batch(_keys(_DATA, "batch_size", "train_batch_size"), "trainer.accumulate_grad_batches"),
        _steps,
        _schedule,
        _warmup,
        Row("precision", "trainer.precision", precision, "fp32"),
        _model,
    ),
)
