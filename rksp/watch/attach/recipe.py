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
from rksp.recipe_files.table.names import schedule_of
from rksp.watch.attach import living

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
    main = max(optimizers, key=lambda one: sum(p.numel() for p in _parameters(one)))
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
    if trainers is None:
        return {}
    for trainer in living(trainers.Trainer):
        if trainer.model is model or getattr(trainer, "model_wrapped", None) is model:
            kinds = [
                kind.__name__.removesuffix("Trainer").lower() for kind in type(trainer).__mro__
            ]
            objective = next((kind for kind in kinds if kind in AFTER_TRAINING), None)
            own = {} if objective is None else {"objective": objective}
            return _of_arguments(trainer.args, trainer.state) | own
    return {}


def _of_arguments(args: Any, state: Any) -> dict[str, object]:
    """Return what the arguments of a Trainer show, and its optimizer does not."""
    steps = args.gradient_accumulation_steps
    found: dict[str, object] = {
        "batch_size": args.train_batch_size * steps * args.world_size,
        "gradient_accumulation_steps": steps,
        "warmup_steps": args.get_warmup_steps(state.max_steps),
        "max_steps": state.max_steps,
        "max_grad_norm": args.max_grad_norm or None,
        "precision": "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
    }
    schedule = schedule_of(str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)))[0]
    return found | ({} if schedule is None else {"schedule": schedule, "min_lr_ratio": 0.0})


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
