"""torchtitan: its registry of configurations in Python, and the TOML files it had before.

The registry is read as a syntax tree: functions that return `Trainer.Config(…)`. A file holds
several; one is chosen by `FILE.py::NAME`.
"""

from __future__ import annotations

import re

from rksp.ground.errors import InputError, nearest
from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Document, Found
from rksp.recipe_files.parse.python_source import FUNCTIONS
from rksp.recipe_files.parse.values import Unresolved
from rksp.recipe_files.readers.known_models import hub_id_of, shape_of
from rksp.recipe_files.table.batch import batch, devices
from rksp.recipe_files.table.convert import betas, clip, optimizer, put_precision, schedule
from rksp.recipe_files.table.draft import Draft
from rksp.recipe_files.table.reader import Marks, Reader, Row

_CONVERTERS = (
    *("model.converters", "model_converters.converters", "model_spec.converters"),
    "training.converters",
)
_SHARED = (
    "parallelism.tensor_parallel_degree",
    "parallelism.pipeline_parallel_degree",
    "parallelism.context_parallel_degree",
)


def choose(document: Document, name: str | None) -> Document:
    """Return the configuration of a registry that is called `name`, or the only one.

    Raises:
        InputError: There are several, or none of that name.
    """
    found = document.data[FUNCTIONS]
    names = [key for key in found if isinstance(found[key], dict)]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        said = f"{document.path} holds {len(names)} configurations ({', '.join(names[:8])}"
        hint = nearest(name, names) if name else ""
        more = ", …" if len(names) > 8 else ""
        raise InputError(f"{said}{more}); give {document.path}::NAME{hint}.")
    prefix = f"{FUNCTIONS}.{name}."
    lines = {
        key.removeprefix(prefix): line
        for key, line in document.lines.items()
        if key.startswith(prefix)
    }
    return Document(
        path=document.path, syntax="python", data={**found[name], "_name": name}, lines=lines
    )


def is_registry(document: Document) -> bool:
    """Return True if a Python file holds functions that return a torchtitan configuration."""
    found = document.data.get(FUNCTIONS) if document.syntax == "python" else None
    return isinstance(found, dict) and any(
        isinstance(value, dict) and "training" in value and "optimizer" in value
        for value in found.values()
    )


def _optimizer(draft: Draft) -> None:
    """Read `default_adamw(lr=…)`, or the first of a list of groups."""
    optimizer(draft, "optimizer", ["optimizer.name"])
    built = draft.text("optimizer._call")
    if built is not None and "muon" in built.value.lower():
        draft.put("optimizer", "muon", built)
    draft.default("optimizer", "adamw")


def _fall(draft: Draft) -> None:
    """Let the rate decay over the last `decay_ratio` of the run, else from the end of warm-up."""
    share, kind = draft.number("lr_scheduler.decay_ratio"), draft.text("lr_scheduler.decay_type")
    name = kind.value if kind is not None else "linear"
    total, warm = int(draft.value("max_steps")), int(draft.value("warmup_steps"))
    if share is not None or name == "sqrt":
        span = min(total - warm, round(total * share.value)) if share is not None else total - warm
        draft.put("schedule", "wsd", share, kind, text=f"falls over the last {span} steps")
        draft.put("decay_steps", max(1, span), share or kind)
        draft.put("decay_shape", name, kind)
    else:
        schedule(draft, "schedule", ["lr_scheduler.decay_type"])
    draft.default("schedule", "linear")


def _precision(draft: Draft) -> None:
    """Set the precision: FSDP mixes precision unless the weights are in 16 bits."""
    weights = draft.text("training.dtype")
    if weights is not None and weights.value in ("bfloat16", "float16"):
        short = {"bfloat16": "pure_bf16", "float16": "pure_fp16"}[weights.value]
        put_precision(draft, Found(key=weights.key, value=short, line=weights.line))
        return
    converters = draft.get(*_CONVERTERS)
    names = converters.value if converters is not None else ()
    for name in names if isinstance(names, list) else ():
        text = name.text if isinstance(name, Unresolved) else str(name)
        if re.search("float8|fp8|mx|fp4", text.lower()):
            draft.put("precision", "fp8", converters, text=f"{text:.60} read as fp8")
            return
    found = draft.text("training.mixed_precision_param")
    if found is not None:
        put_precision(draft, found)


def _model(draft: Draft) -> None:
    start = draft.text("checkpoint.initial_load_path")
    if start is not None and draft.false("checkpoint.initial_load_model_only") is None:
        draft.start_trained()  # with its own defaults; otherwise it goes on as a run that stopped
    name, flavor = draft.text("model.name"), draft.text("model.flavor")
    flavor = flavor or draft.text("model_spec._0")
    assets = draft.text("hf_assets_path", "model.hf_assets_path")
    family = name.value if name is not None else str(draft.document.data.get("_name", ""))
    known = shape_of(f"{family}_{flavor.value}" if name is not None and flavor else family)
    weights = hub_id_of(assets.value) if assets is not None else None
    if family.startswith("sft_") and weights is not None:
        draft.start_trained()
        draft.describe(weights, {}, f"It finetunes the weights in {definite(assets).value}.")
        return
    if known is not None:
        draft.describe(*known, "torchtitan cuts initial weights off at three deviations.")
        return
    model_name = name.value if name is not None else "the model"
    if name is None and flavor is None:
        return
    size = f" {flavor.value}" if flavor is not None else ""
    hint = f" (its assets are {assets.value})" if assets is not None else ""
    draft.no_target(
        f"{model_name}{size} is a flavor in torchtitan's code{hint}; name the same model as TARGET."
    )


READER = Reader(
    name="torchtitan",
    title="torchtitan",
    version="0.3.0",
    source="pytorch/torchtitan, torchtitan/config/configs.py and torchtitan/components/optimizer",
    marks=(
        Marks(all="training optimizer.lr", syntax="toml"),
        Marks(
            all="training optimizer",
            some="model_spec lr_scheduler checkpoint training.local_batch_size",
            syntax="python",
        ),
    ),
    steps=(
        _optimizer,
        Row("learning_rate", "optimizer.lr", default=8e-4),
        betas("optimizer.betas"),
        Row("adam_beta1", "optimizer.beta1", default=0.9),
        Row("adam_beta2", "optimizer.beta2", default=0.95),
        Row("adam_epsilon", "optimizer.eps", default=1e-8),
        Row("weight_decay", "optimizer.weight_decay", default=0.1),
        Row("max_grad_norm", "training.max_norm", clip, 1.0),
        Row("sequence_length", "training.seq_len", default=2048),
        devices(
            "parallelism.data_parallel_shard_degree",
            "parallelism.data_parallel_replicate_degree",
            *_SHARED,
        ),
        batch(
            "training.local_batch_size training.batch_size",
            whole="training.global_batch_size",
            shared=_SHARED,
            default=8,
        ),
        Row("max_steps", "training.steps", default=10_000),
        Row("warmup_steps", "lr_scheduler.warmup_steps", default=200),
        _fall,
        Row("min_lr_ratio", "lr_scheduler.min_lr_factor lr_scheduler.lr_min", default=0.0),
        _precision,
        Row("precision", "", default="bf16"),
        _model,
    ),
)
