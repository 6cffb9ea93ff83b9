"""Lightning's command line, litgpt and timm.

Lightning's YAML (`LightningCLI`) has parts that name classes and their arguments. The model and the
data are the user's own classes, so that rksp reads what their arguments are usually called. A model
that builds its optimizer itself leaves the optimizer assumed. litgpt has YAML for `litgpt pretrain`
and the `litgpt finetune` family; timm the arguments of its train.py, as it writes them to
`args.yaml`, or as a command.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Document, Found, FoundNumber, FoundText, lines_below
from rksp.recipe_files.parse.values import Section, as_section
from rksp.recipe_files.table import convert
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.names import precision_of, shape_of

_MODEL = ("model.init_args", "model")
_OPTIMIZERS = ("optimizer", *(f"{part}.optimizer" for part in _MODEL))
_SCHEDULERS = ("lr_scheduler", *(f"{part}.lr_scheduler" for part in _MODEL))
_EPOCHS = 1000  # Lightning's own, without max_epochs and max_steps
_COMMANDS = ("fit", "validate", "test", "predict")


def is_subcommanded(document: Document) -> bool:
    """Tell whether the settings stand under `fit`, as in a file given before the subcommand."""
    inner = document.data.get("fit")
    return isinstance(inner, Mapping) and "trainer" in inner and "trainer" not in document.data


def of_subcommand(document: Document) -> Document:
    """Return a document with the settings of `fit` at the top, beside those of no subcommand."""
    data = {key: value for key, value in document.data.items() if key not in _COMMANDS}
    lines = {k: n for k, n in document.lines.items() if k.partition(".")[0] not in _COMMANDS}
    lines |= lines_below(document.lines, "fit")
    data |= as_section(document.data["fit"])
    return dataclasses.replace(document, data=data, lines=lines)


def _keys(parts: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(f"{part}.{name}" for part in parts for name in names)


def _arguments(parts: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(key for part in parts for key in _keys((f"{part}.init_args", part), *names))


_WARMUP = ("num_warmup_steps", "warmup_steps")


def _class(draft: Draft, parts: tuple[str, ...]) -> FoundText | None:
    keys = (key for part in parts for key in (f"{part}.class_path", part))
    return next((found for key in keys if (found := draft.text(key)) is not None), None)


def _optimizer(draft: Draft) -> None:
    found = _class(draft, _OPTIMIZERS)
    if found is None:
        draft.assume("optimizer", "the model's code builds it; give --optimizer")
    else:
        convert.put_optimizer(draft, found)


def _of_torch(draft: Draft) -> None:
    found = _class(draft, _OPTIMIZERS)
    package, _, name = found.value.rpartition(".") if found is not None else ("?", "", "")
    if package not in ("", "torch.optim"):
        return
    convert.number(draft, "momentum", _arguments(_OPTIMIZERS, "momentum"))
    for field, usual in (("momentum", 0.0), ("learning_rate", 1e-3), ("adam_beta1", 0.9),
                         ("adam_beta2", 0.999), ("adam_epsilon", 1e-8),
                         ("weight_decay", 0.01 if name == "AdamW" else 0.0)):  # fmt: skip
        draft.default(field, usual)


def _steps(draft: Draft) -> None:
    steps, rounds = draft.number("trainer.max_steps"), draft.number("trainer.max_epochs")
    limit = draft.get("trainer.limit_train_batches")
    batches = limit.value if limit is not None and isinstance(limit.value, int) else 0
    if rounds is not None and rounds.value > 0 and batches > 0:
        each = math.ceil(batches / int(draft.value("gradient_accumulation_steps")))
        count, text = each * int(rounds.value), f"{each} a pass × {rounds.value:g} passes"
        if steps is None or not 0 < steps.value < count:
            draft.put("max_steps", count, limit, rounds, text=text)
            return
    if steps is not None and steps.value > 0:
        draft.put("max_steps", steps.value, steps)
    elif rounds is not None and rounds.value < 0:
        draft.assume("max_steps", "trainer.max_epochs is -1, without an end", rounds)
    else:
        passes = None if rounds is None else rounds.value
        convert.put_epochs(draft, "max_steps", passes, rounds, "trainer.max_epochs", _EPOCHS)


def _schedule(draft: Draft) -> None:
    """Set the schedule; a scheduler of torch is stepped once an epoch by Lightning's command."""
    found = _class(draft, _SCHEDULERS)
    if found is None:
        if _class(draft, ("optimizer",)) is None:
            draft.assume("schedule", "the model's code builds it; give --schedule")
        draft.default("schedule", "constant")
        return
    name = found.value.rpartition(".")[2]
    if name == "OneCycleLR":
        _one_cycle(draft, found)
    elif name in ("LinearLR", "ConstantLR"):
        draft.assume("schedule", f"{found.key} is {name}, which rises; give --schedule", found)
    else:
        convert.put_schedule(draft, found)
    if name == "PolynomialLR":
        convert.number(draft, "decay_power", _arguments(_SCHEDULERS, "power"))
        draft.default("min_lr_ratio", 0.0)
    elif name == "CosineAnnealingLR":
        convert.lowest_rate(draft, "min_lr_ratio", _arguments(_SCHEDULERS, "eta_min"))
        draft.default("min_lr_ratio", 0.0)
        span = _argument(draft, "T_max")
        ends = [draft.count(f"trainer.{key}") for key in ("max_epochs", "max_steps")]
        if span is not None and span.value not in ends:
            draft.note(f"{span.key} is {span.value:g}; rksp takes the decay to end with the run.")
    elif name == "ExponentialLR":
        gamma, rounds = _argument(draft, "gamma"), draft.number("trainer.max_epochs")
        if gamma is not None and rounds is not None and rounds.value > 0:
            share = float(f"{gamma.value**rounds.value:.6g}")
            text = f"{gamma.value:g}^{rounds.value:g}"
            draft.put("min_lr_ratio", share, gamma, rounds, text=text)
    elif name in ("StepLR", "MultiStepLR"):
        _milestones(draft, found)


def _argument(draft: Draft, name: str) -> FoundNumber | None:
    return draft.number(*_arguments(_SCHEDULERS, name))


def _one_cycle(draft: Draft, found: Found) -> None:
    kind = draft.text_or("cos", *_arguments(_SCHEDULERS, "anneal_strategy"))
    shape = "linear" if kind.value == "linear" else "cosine"
    draft.put("schedule", shape, found, kind, text="one cycle")
    peak, share = _argument(draft, "max_lr"), _argument(draft, "pct_start")
    if peak is not None:
        draft.put("learning_rate", peak.value, peak)
    start, end = _argument(draft, "div_factor"), _argument(draft, "final_div_factor")
    last = 1 / ((start.value if start else 25) * (end.value if end else 1e4))
    draft.put("min_lr_ratio", last, start, end, text="1 / (div_factor × final_div_factor)")
    convert.put_warmup(draft, share or FoundNumber(key="pct_start", value=0.3, line=found.line))


def _milestones(draft: Draft, found: Found) -> None:
    listed = draft.get(*_arguments(_SCHEDULERS, "milestones"))
    every, rounds = _argument(draft, "step_size"), draft.number("trainer.max_epochs")
    if rounds is None or rounds.value <= 0 or (listed is None and every is None):
        draft.assume("decay_milestones", "they count epochs; give --set decay_milestones=", found)
    elif listed is not None:
        convert.put_milestones(draft, draft.numbers(listed), rounds.value, listed)
    else:
        each = definite(every).value
        points = [each * (i + 1) for i in range(int((rounds.value - 1) // each))]
        convert.put_milestones(draft, points, rounds.value, every)
    convert.number(draft, "decay_factor", _arguments(_SCHEDULERS, "gamma"))


def _warmup(draft: Draft) -> None:
    keys = (*_arguments(_SCHEDULERS, *_WARMUP), *_keys(_MODEL, *_WARMUP))
    convert.number(draft, "warmup_steps", keys)
    if _class(draft, ("optimizer", *_SCHEDULERS)) is not None:
        draft.default("warmup_steps", 0)


def _model(draft: Draft) -> None:
    found = draft.text_or("model", "model.class_path")
    names = ("model_name_or_path", "pretrained_model_name_or_path")
    named = draft.text(*_keys(_MODEL, *names))
    if named is not None:
        draft.names_weights = True
        draft.describe(named.value, {}, f"{named.key}: it starts from those weights.")
        return
    draft.no_target(f"{found.value} is the run's own class; name the same model as TARGET.")


def _is_finetuning(draft: Draft) -> bool:
    return draft.document.has("checkpoint_dir") or draft.document.has("lora_r")


def _gpt_steps(draft: Draft) -> None:
    steps, tokens = draft.get("train.max_steps"), draft.get("train.max_tokens")
    if steps is not None:
        convert.put_steps(draft, "max_steps", steps)
    elif tokens is not None:
        convert.put_steps(draft, "max_steps", tokens, "tok")
    elif not _is_finetuning(draft) and not draft.document.has("train.epochs"):
        size, length = int(draft.value("batch_size")), int(draft.value("sequence_length"))
        whole = round(3e12 / (size * length))
        draft.default("max_steps", whole, "3e12 tokens", ("batch_size", "sequence_length"))
    else:
        convert.epochs(draft, "train.epochs", 5)


def _lowest(draft: Draft) -> None:
    """Set the lowest rate; finetuning ignores `min_lr` and ends at 0 (litgpt/finetune/full.py)."""
    if _is_finetuning(draft):
        draft.default("min_lr_ratio", 0.0, "finetuning anneals to zero and ignores min_lr")
        return
    convert.lowest_rate(draft, "min_lr_ratio", ["train.min_lr"])
    draft.default("min_lr_ratio", *convert.over_peak(draft, 4e-5))


def _gpt_warmup(draft: Draft) -> None:
    convert.number(draft, "warmup_steps", ["train.lr_warmup_steps"])
    share = draft.number("train.lr_warmup_fraction")
    if share is not None and not draft.knows("warmup_steps"):
        convert.put_epochs(draft, "warmup_steps", share.value, share, share.key)
    draft.default("warmup_steps", 100 if _is_finetuning(draft) else 2000)


def _gpt_clip(draft: Draft) -> float | None:
    """Return the default clipping, which only pretraining has (litgpt/pretrain.py, setup)."""
    return None if _is_finetuning(draft) else 1.0


def _lora(draft: Draft) -> None:
    quantized, found = draft.text_or("", "quantize"), draft.number("lora_r")
    is_four = quantized.value.removeprefix("bnb.")[:2] in ("nf", "fp")
    if found is None:
        return
    draft.put("peft", "qlora" if is_four else "lora", found, quantized if is_four else None)
    draft.put("lora_rank", found.value, found)
    convert.number(draft, "lora_alpha", ["lora_alpha"])
    draft.default("lora_alpha", 16.0)
    parts = ("query", "key", "value", "projection", "mlp", "head")
    on = {part: key for part in parts if (key := draft.true(f"lora_{part}")) is not None}
    if on:
        draft.put("lora_targets", tuple(on), *on.values())


def _gpt_model(draft: Draft) -> None:
    if draft.text("checkpoint_dir", "initial_checkpoint_dir") is not None:
        draft.names_weights = True
    settings = draft.mapping("model_config")
    if settings.get("n_layer") and settings.get("n_embd"):
        _describe(draft, settings)
        return
    base = draft.text("checkpoint_dir")
    if base is not None:
        name = base.value.removeprefix("checkpoints/")
        draft.describe(name, {}, "checkpoint_dir: it starts from those weights.")
        return
    named = draft.text("model_name")
    known = shape_of(named.value) if named is not None else None
    if known is not None:
        draft.describe(*known)
    elif named is not None:
        draft.no_target(f"{named.value!r} is litgpt's name for its own model; name a TARGET.")


def _describe(draft: Draft, settings: Section) -> None:
    common = convert.settings_in(settings, _LITGPT)
    common |= {"tie_word_embeddings": draft.true("train.tie_embeddings") is not None}
    if "RMSNorm" in draft.text_or("LayerNorm", "model_config.norm_class_name").value:
        draft.describe("llama", common | convert.settings_in(settings, _GROUPS))
        return
    own = {
        "use_parallel_residual": draft.false("model_config.parallel_residual") is None,
        "rope_parameters.partial_rotary_factor": draft.amount(
            "model_config.rotary_percentage", default=0.25
        ),
    }
    draft.describe("gpt_neox", common | own)


_LITGPT = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "intermediate_size": "intermediate_size",
    "vocab_size": "padded_vocab_size vocab_size",
    "max_position_embeddings": "block_size",
}
_GROUPS = {"num_key_value_heads": "n_query_groups n_head"}


_CYCLIC = ("cosine", "tanh", "poly")  # schedules that train on through `cooldown_epochs`
_ROOTS = ("ada", "lamb")  # optimizers whose rate grows with the root of the batch
_MILESTONES = (90, 180, 270)
# Plain vision transformers: name -> width, depth, heads.
_SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6),
          "base": (768, 12, 12), "large": (1024, 24, 16)}  # fmt: skip
_VIT = re.compile(r"^(vit|deit)_(tiny|small|base|large)_patch(\d+)_(\d+)(\..*)?$")


def _timm_rate(draft: Draft) -> None:
    found = draft.number("lr")
    if found is not None and found.value > 0:
        draft.put("learning_rate", found.value, found)
        return
    base, size = draft.number_or(0.1, "lr_base"), draft.amount("lr_base_size", default=256)
    usual = "sqrt" if any(part in draft.word("opt") for part in _ROOTS) else "linear"
    is_root = draft.text_or(usual, "lr_base_scale").value == "sqrt"
    ratio = int(draft.value("batch_size")) / size
    rate = base.value * (ratio**0.5 if is_root else ratio)
    text = f"× {'√' if is_root else ''}({draft.value('batch_size')} / {size:g})"
    draft.put("learning_rate", float(f"{rate:.6g}"), base, text=text, after=("batch_size",))


def _epochs(draft: Draft) -> tuple[float, float]:
    decay, cycles = draft.amount("epochs", default=300), draft.count("lr_cycle_limit") or 1
    more = 0
    if (draft.word("sched") or "cosine") in _CYCLIC:
        decay, more = decay * cycles, draft.count("cooldown_epochs") or 0
    if draft.true("warmup_prefix") is not None:
        decay += draft.amount("warmup_epochs", default=5)
    return decay + more, decay


def _length(draft: Draft) -> None:
    found, up = draft.number("epochs"), draft.number_or(5, "warmup_epochs")
    total, end = _epochs(draft)
    convert.put_epochs(draft, "max_steps", total, found, "epochs", rounding=math.floor)
    steps = convert.epoch_in_steps(draft, up.value, total)
    text = f"{up.value:g} of {total:g} epochs"
    draft.put("warmup_steps", steps, up, found, text=text, after=("max_steps",))
    if end < total:
        convert.put_decay_until(draft, convert.epoch_in_steps(draft, end, total), found)
    if (draft.count("lr_cycle_limit") or 1) > 1:
        draft.note("lr_cycle_limit: the rate rises again; rksp reads the run as one cycle.")


def _timm_schedule(draft: Draft) -> None:
    kind, factor = draft.value("schedule"), draft.number_or(0.1, "decay_rate")
    if kind == "polynomial":
        draft.put("decay_power", factor.value, factor)
    if kind != "step":
        return
    draft.put("decay_factor", factor.value, factor)
    total, _ = _epochs(draft)
    if draft.text_or("", "sched").value.startswith("multi"):
        listed = draft.get("decay_milestones")
        points = _MILESTONES if listed is None else draft.numbers(listed)
    else:
        listed = every = draft.number_or(90, "decay_epochs")
        points = [every.value * (i + 1) for i in range(int(total / every.value))]
    convert.put_milestones(draft, [point for point in points if point < total], total, listed)


def _timm_precision(draft: Draft) -> None:
    kind, on = draft.text_or("float16", "amp_dtype"), draft.true("amp", "native_amp")
    if on is not None:
        draft.put("precision", precision_of(kind.value) or "fp16", on, kind)


def _timm_model(draft: Draft) -> None:
    if draft.true("pretrained") is not None or draft.text("initial_checkpoint") is not None:
        draft.names_weights = True
    named = draft.text("model")
    if named is None:
        return
    match = _VIT.match(named.value.removeprefix("timm/"))
    if match is None:
        draft.no_target(f"{named.value!r} is a model of timm; name the same model as TARGET.")
        return
    width, depth, heads = _SIZES[match[2]]
    image = draft.count("img_size") or int(match[4])
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
