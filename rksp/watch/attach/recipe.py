"""The recipe of a running script, as its optimizer, schedule, inputs and trainer show it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from rksp.models.adapters import adapters_of, precision_of
from rksp.recipe import AFTER_TRAINING, fields_of
from rksp.recipe.optimizers.groups import groups_of, parameters_of
from rksp.recipe_files.said.origin import OriginKind
from rksp.recipe_files.table.names import schedule_of
from rksp.watch.attach import living
from rksp.watch.training.known_faults import file_of_arguments

_SAID = (OriginKind.FILE, OriginKind.COMPUTED, OriginKind.TRAINER)
_LENGTHS = ("total_steps", "T_max")  # of OneCycleLR and of CosineAnnealingLR


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the first step shows of a run; None of what it does not show."""

    examples: int | None = None  # of a forward pass
    tokens: int | None = None  # of each
    precision: str | None = None
    passes: int = 1  # backward ones of a step
    ranks: int = 1
    limit: float | None = None  # the norm to which the script clips


def sizes_of(inputs: object, model: nn.Module) -> Sizes:
    """Return what the first forward pass shows.

    Args:
        inputs: Its arguments. The first tensor with two dimensions or more counts: `[examples,
            tokens, …]`; tokens only where it holds integers.
        model: The model.
    """
    tensors = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
    first = next((tensor for tensor in tensors if tensor.dim() >= 2), None)
    kind = next(model.parameters()).device.type
    if torch.is_autocast_enabled(kind):
        low = torch.get_autocast_dtype(kind)
        precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(low)
    else:
        precision = precision_of(model)
    return Sizes(
        examples=None if first is None else len(first),
        tokens=None if first is None or first.is_floating_point() else first.shape[1],
        precision=precision,
    )


def found_recipe(
    model: nn.Module, optimizers: Sequence[Optimizer], sizes: Sizes
) -> dict[str, object]:
    """Return the fields of a recipe that a run shows by the end of its first backward pass.

    The rate is the highest that a group was made with: during a warm-up its own is lower.

    Args:
        model: What is trained.
        optimizers: Its optimizers.
        sizes: What its steps showed.
    """
    main = max(optimizers, key=lambda one: sum(p.numel() for p in parameters_of(one)))
    made = float(main.defaults.get("lr", 0.0))
    rates = [
        max(group.rate, made) if group.initial is None else group.initial
        for group in groups_of(main)
    ]
    passes = max(1, sizes.passes)
    fields: dict[str, object] = {
        **fields_of(main),
        "learning_rate": max(rates),
        "gradient_accumulation_steps": passes,
        "batch_size": sizes.examples and sizes.examples * passes * sizes.ranks,
        "sequence_length": sizes.tokens,
        "precision": sizes.precision,
        "max_grad_norm": sizes.limit,
        "peft": adapters_of(model),
        **_schedule(main),
        **_of_trainer(model),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _schedule(optimizer: Optimizer) -> dict[str, object]:
    """Return what a scheduler of torch or of transformers tells; a script's own tells nothing."""
    found: dict[str, object] = {}
    steps: object = None
    for scheduler in living(LRScheduler):
        if getattr(scheduler, "optimizer", None) is not optimizer:
            continue
        for one in getattr(scheduler, "lr_lambdas", ()):
            told = getattr(one, "keywords", {})  # of a functools.partial
            if (warmup := told.get("num_warmup_steps")) is not None:
                found |= {"warmup_steps": warmup, "schedule": schedule_of(one.func.__name__)[0]}
            steps = told.get("num_training_steps", steps)
        for name in _LENGTHS:
            steps = getattr(scheduler, name, steps)
    return found | {"max_steps": steps}


def _of_trainer(model: nn.Module) -> dict[str, object]:
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
