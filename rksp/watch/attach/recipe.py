"""The recipe of a running script, as its optimizer, schedule, inputs and trainer show it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from rksp.models.adapters import adapters_of, precision_of
from rksp.recipe import AFTER_TRAINING, fields_of
from rksp.recipe_files.said.origin import OriginKind
from rksp.recipe_files.table.names import schedule_of
from rksp.watch.attach import living
from rksp.watch.training.known_faults import file_of_arguments

_SAID = (OriginKind.FILE, OriginKind.COMPUTED, OriginKind.TRAINER)
_LENGTHS = ("total_steps", "T_max")  # of OneCycleLR and of CosineAnnealingLR


def sizes_of(inputs: object, model: nn.Module) -> dict[str, Any]:
    """Return what the first forward pass shows: examples, tokens of each, precision.

    Args:
        inputs: Its arguments. The first tensor with two dimensions or more counts: `[examples,
            tokens, …]`; tokens only where it holds integers.
        model: The model.
    """
    found: dict[str, Any] = {}
    tensors = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
    first = next((tensor for tensor in tensors if tensor.dim() >= 2), None)
    if first is not None:
        found["examples"] = len(first)
        if not first.is_floating_point():
            found["tokens"] = first.shape[1]
    kind = next(model.parameters()).device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        found["precision"] = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(low)
    else:
        found["precision"] = precision_of(model)
    return found


def found_recipe(
    model: nn.Module, optimizers: Sequence[Optimizer], sizes: Mapping[str, Any]
) -> dict[str, object]:
    """Return the fields of a recipe that a run shows by the end of its first backward pass.

    The rate is the highest that a group was made with: during a warm-up its own is lower.

    Args:
        model: What is trained.
        optimizers: Its optimizers.
        sizes: `sizes_of`, with `passes` (backward passes), `ranks` and `limit` (of the clip).
    """
    sizes_held = [
        sum(p.numel() for g in one.param_groups for p in g["params"]) for one in optimizers
    ]
    main = optimizers[sizes_held.index(max(sizes_held))]
    rates = [
        float(group.get("initial_lr", max(float(group["lr"]), float(main.defaults.get("lr", 0.0)))))
        for group in main.param_groups
    ]
    passes, examples = max(1, sizes.get("passes", 1)), sizes.get("examples")
    fields: dict[str, object] = {
        **fields_of(main),
        "learning_rate": max(rates),
        "gradient_accumulation_steps": passes,
        "batch_size": examples and examples * passes * sizes.get("ranks", 1),
        "sequence_length": sizes.get("tokens"),
        "precision": sizes.get("precision"),
        "max_grad_norm": sizes.get("limit"),
        "peft": adapters_of(model),
        **_schedule(main),
        **_of_trainer(model),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _schedule(optimizer: Optimizer) -> dict[str, object]:
    """Return what a scheduler of torch or of transformers tells; a script's own tells nothing."""
    found: dict[str, object] = {}
    for scheduler in living(LRScheduler):
        if getattr(scheduler, "optimizer", None) is not optimizer:
            continue
        for one in getattr(scheduler, "lr_lambdas", ()):
            told = getattr(one, "keywords", {})  # of a functools.partial
            if "num_warmup_steps" in told:
                found["warmup_steps"] = told["num_warmup_steps"]
                found["schedule"] = schedule_of(one.func.__name__)[0]
            found["max_steps"] = told.get("num_training_steps", found.get("max_steps"))
        for name in _LENGTHS:
            found["max_steps"] = getattr(scheduler, name, found.get("max_steps"))
    return found


def _of_trainer(model: nn.Module) -> dict[str, object]:
    """Return what the arguments of a Trainer of transformers say, if one trains the model."""
    trainers = sys.modules.get("transformers.trainer")
    for trainer in () if trainers is None else living(trainers.Trainer):
        if model in (trainer.model, getattr(trainer, "model_wrapped", None)):
            file, steps = file_of_arguments(trainer.args), trainer.state.max_steps
            known = () if file is None else file.fields
            said = {one.name: one.value for one in known if one.origin.kind in _SAID}
            own = {"max_steps": steps, "warmup_steps": trainer.args.get_warmup_steps(steps)}
            kinds = (kind.__name__.removesuffix("Trainer") for kind in type(trainer).__mro__)
            after = [kind.lower() for kind in kinds if kind.lower() in AFTER_TRAINING]
            return said | own | ({"objective": after[0]} if after else {})
    return {}
