"""timm: the arguments of its train.py, as it writes them to `args.yaml`, or as a command."""

from __future__ import annotations

import math
import re

from rksp.recipe_files.table.batch import batch, devices
from rksp.recipe_files.table.convert import (
    betas,
    clip,
    lowest_rate,
    optimizer,
    put_decay_until,
    schedule,
)
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.duration import epoch_in_steps, put_epochs, put_milestones
from rksp.recipe_files.table.reader import Marks, Reader, Row

_CYCLIC = ("cosine", "tanh", "poly")  # schedules that train on through `cooldown_epochs`
_ROOTS = ("ada", "lamb")  # optimizers whose rate grows with the root of the batch
_MILESTONES = (90, 180, 270)
_EPSILONS = {"lamb": 1e-6}
# Plain vision transformers: name -> width, depth, heads.
_SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
_VIT = re.compile(r"^(vit|deit)_(tiny|small|base|large)_patch(\d+)_(\d+)(\..*)?$")


def _rate(draft: Draft) -> None:
    """Set the rate: `lr`, else `lr_base` times the batch over `lr_base_size`, or its root."""
    found = draft.number("lr")
    if found is not None and found.value > 0:
        draft.put("learning_rate", found.value, found)
        return
    base = draft.number("lr_base")
    size = draft.amount("lr_base_size", default=256)
    scale = draft.text("lr_base_scale")
    is_root = (
        any(part in _opt(draft) for part in _ROOTS) if scale is None else scale.value == "sqrt"
    )
    ratio = int(draft.value("batch_size")) / size
    rate = (0.1 if base is None else base.value) * (ratio**0.5 if is_root else ratio)
    text = f"× {'√' if is_root else ''}({draft.value('batch_size')} / {size:g})"
    draft.put("learning_rate", float(f"{rate:.6g}"), base, text=text, after=("batch_size",))


def _opt(draft: Draft) -> str:
    found = draft.text("opt")
    return "sgd" if found is None else found.value.lower()


def _clip(draft: Draft) -> None:
    kind = draft.text("clip_mode")
    if kind is not None and kind.value != "norm" and draft.number("clip_grad") is not None:
        draft.note(f"clip_mode is {kind.value}, which rksp reads as no clipping of the norm.")
        draft.put("max_grad_norm", None, kind, text=f"{kind.value} is no norm of all gradients")
    else:
        clip(draft, "max_grad_norm", ["clip_grad"])
    draft.default("max_grad_norm", None)


def _epochs(draft: Draft) -> tuple[float, float]:
    """Return the epochs of the run and the one at which the decay ends."""
    kind = draft.text("sched")
    decay, cycles = draft.amount("epochs", default=300), draft.count("lr_cycle_limit", default=1)
    if kind is None or kind.value.lower() in _CYCLIC:
        decay, more = decay * cycles, draft.count("cooldown_epochs", default=0)
    else:
        more = 0
    if draft.true("warmup_prefix") is not None:
        decay += draft.amount("warmup_epochs", default=5)
    return decay + more, decay


def _length(draft: Draft) -> None:
    """Set warm-up, length and decay from epochs, each without its last, smaller batch."""
    found, up = draft.number("epochs"), draft.number("warmup_epochs")
    (total, end), count = _epochs(draft), 5 if up is None else up.value
    put_epochs(draft, "max_steps", total, found, "epochs", rounding=math.floor)
    steps = epoch_in_steps(draft, count, total)
    text = f"{count:g} of {total:g} epochs"
    draft.put("warmup_steps", steps, up, found, text=text, after=("max_steps",))
    if end < total:
        put_decay_until(draft, epoch_in_steps(draft, end, total), found)
    if draft.count("lr_cycle_limit", default=1) > 1:
        draft.note("lr_cycle_limit: the rate rises again; rksp reads the run as one cycle.")


def _schedule(draft: Draft) -> None:
    """Set what `decay_rate` is: the power of a polynomial, or a factor at each milestone."""
    kind, rate = draft.value("schedule"), draft.number("decay_rate")
    factor = 0.1 if rate is None else rate.value
    if kind == "polynomial":
        draft.put("decay_power", factor, rate)
    if kind != "step":
        return
    draft.put("decay_factor", factor, rate)
    total, _ = _epochs(draft)
    found = draft.text("sched")
    if found is not None and found.value.startswith("multi"):
        listed = draft.get("decay_milestones")
        points = _MILESTONES if listed is None else listed.value
    else:
        listed = draft.number("decay_epochs")
        each = 90 if listed is None else listed.value
        points = [each * (i + 1) for i in range(int(total / each))]
    put_milestones(draft, [point for point in points if point < total], total, listed)


def _precision(draft: Draft) -> None:
    """Set the precision: `amp` computes in `amp_dtype`, `model_dtype` keeps the weights in it."""
    whole, kind = draft.text("model_dtype"), draft.text("amp_dtype")
    on = draft.true("amp", "native_amp")
    names = {"float16": "fp16", "bfloat16": "bf16"}
    if whole is not None and whole.value in names:
        draft.put("precision", f"{names[whole.value]}-pure", whole)
    elif on is not None:
        ours = names.get("float16" if kind is None else kind.value, "fp16")
        draft.put("precision", ours, on, kind)
    draft.default("precision", "fp32")


def _model(draft: Draft) -> None:
    """Set a plain vision transformer from its name; other architectures are timm's own."""
    if draft.true("pretrained") is not None or draft.text("initial_checkpoint") is not None:
        draft.start_trained()
    if draft.text("resume") is not None:
        draft.note("resume: the run continues from a checkpoint, which rksp does not read.")
    if draft.number("layer_decay") is not None:
        draft.note("layer_decay: early layers have lower rates; rksp judges the highest.")
    named = draft.text("model")
    if named is None:
        return
    match = _VIT.match(named.value.removeprefix("timm/"))
    if match is None:
        draft.no_target(f"{named.value!r} is a model of timm; name the same model as TARGET.")
        return
    width, depth, heads = _SIZES[match[2]]
    image = draft.count("img_size", default=int(match[4]))
    draft.describe(
        "vit",
        {
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": heads,
            "intermediate_size": 4 * width,
            "patch_size": int(match[3]),
            "image_size": image,
        },
        f"timm's {named.value} is read as transformers' vit of the same size.",
    )


READER = Reader(
    name="timm",
    title="timm",
    version="1.0",
    source="huggingface/pytorch-image-models, train.py, timm/scheduler and timm/optim",
    marks=(
        Marks(
            all="opt sched",
            some="epochs model warmup_epochs warmup_lr lr_base drop_path mixup smoothing clip_grad",
            least=2,
        ),
    ),
    steps=(
        devices("world_size"),
        Row("optimizer", "opt", optimizer, "sgd"),
        Row("momentum", "momentum", default=0.9),
        betas("opt_betas"),
        Row("adam_beta1", "", default=0.9),
        Row("adam_beta2", "", default=0.999),
        Row("adam_epsilon", "opt_eps", default=lambda draft: _EPSILONS.get(_opt(draft), 1e-8)),
        Row("weight_decay", "weight_decay", default=2e-5),
        _clip,
        batch("batch_size", "grad_accum_steps", default=128),
        _rate,
        _length,
        Row("schedule", "sched", schedule, "cosine"),
        _schedule,
        Row("min_lr_ratio", "min_lr", lowest_rate, 0.0),
        _precision,
        Row("objective", "", default="classification"),
        _model,
    ),
)
