"""What is known of the installed releases for a training that is about to start."""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from rksp.checks.advisories import audit, gpu_facts, model_facts, packages
from rksp.checks.environment import installed_here
from rksp.documents.finding import Level
from rksp.ground.errors import InputError
from rksp.recipe.optimizers.groups import groups_of
from rksp.recipe.optimizers.table import optimizer_of_class
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.parse.values import Parsed
from rksp.recipe_files.registry import read_document
from rksp.recipe_files.said.facts import Fact, Facts, run_facts
from rksp.recipe_files.said.origin import RecipeFile
from rksp.watch.attach import living
from rksp.watch.groups import world_size

if TYPE_CHECKING:
    from transformers import TrainingArguments

_LOG = logging.getLogger("rksp")
# Lightning's words -> those of the advisories.
_PRECISIONS = {"32-true": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16",
               "bf16-true": "bf16-pure", "16-true": "fp16-pure"}  # fmt: skip
_SPREAD = {"ddp": "ddp", "fsdp": "fsdp1", "modelparallel": "fsdp2", "deepspeed": "deepspeed"}


def log_known_faults(model: nn.Module, optimizer: Optimizer | None, facts: Facts) -> None:
    """Log the advisories for the installed releases with this model and optimizer.

    Mere notes are left out. What is not known of the run never warns.

    Args:
        model: The model that is trained.
        optimizer: Its optimizer.
        facts: What the trainer knows besides, by the names of the advisories' conditions.
    """
    known = {**_live_facts(model, optimizer), **facts}
    for finding in audit(installed_here(packages()), known, datetime.date.today()).findings:
        if finding.level is not Level.NOTE:
            _LOG.warning("%s %s: %s", finding.level, finding.code, finding.text)


def stated(**values: object) -> dict[str, Fact]:
    """Return the settings that are known, as facts; None stands for one that is not."""
    return {name: Fact((value,)) for name, value in values.items() if value is not None}


def file_of_arguments(args: TrainingArguments) -> RecipeFile | None:
    """Read the arguments of a Trainer of transformers or TRL; None where no run file has such."""
    name, is_trl = type(args).__name__, type(args).__module__.startswith("trl.")
    stage = {"objective": name.removesuffix("Config").lower()} if is_trl else {}
    given: dict[str, Parsed] = args.to_dict()  # type: ignore[no-untyped-call]  # theirs
    data = {key: value for key, value in given.items() if value is not None} | stage
    document = Document(path=Path(name), syntax="json", data=data)
    trainer = "trl" if is_trl else "hugging-face"
    try:
        return read_document(document, trainer=trainer, devices=args.world_size)
    except InputError:
        return None


def facts_of_arguments(args: TrainingArguments) -> Mapping[str, Fact]:
    """Return the arguments of a Trainer of transformers or TRL as a run file would say them."""
    file = file_of_arguments(args)
    found = {} if file is None else run_facts(file)
    of_model = ("dtype", "attn_implementation")  # which was loaded before; no argument shows it
    return {name: fact for name, fact in found.items() if name not in of_model}


def facts_of_lightning(trainer: Any) -> Mapping[str, Fact]:
    """Return the settings of a Trainer of Lightning in the words of the advisories."""
    precision, strategy = str(trainer.precision), type(trainer.strategy).__name__.lower()
    return stated(
        trainer="lightning",
        automatic_optimization=trainer.lightning_module.automatic_optimization,
        gradient_accumulation_steps=trainer.accumulate_grad_batches,
        max_grad_norm=trainer.gradient_clip_val,
        precision=_PRECISIONS.get(precision, precision),
        distributed=next((v for k, v in _SPREAD.items() if strategy.startswith(k)), None),
    )


def facts_of_loop() -> Mapping[str, Fact]:
    """Return what is known of a loop of your own, or of one under accelerate."""
    library = sys.modules.get("accelerate")
    found = None if library is None else next(living(library.Accelerator), None)
    if found is None:
        return stated(trainer="own", custom_loop=True)
    kind, precision = found.distributed_type.name, found.mixed_precision
    sharded = "fsdp2" if getattr(found, "is_fsdp2", False) else "fsdp1"
    spread = {"FSDP": sharded, "DEEPSPEED": "deepspeed", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp"}
    return stated(
        trainer="accelerate",
        custom_loop=True,
        gradient_accumulation_steps=found.gradient_accumulation_steps,
        precision={"no": "fp32"}.get(precision, precision),
        distributed=spread.get(kind),
    )


def _live_facts(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Fact]:
    config = getattr(model, "config", None)
    on_gpu = any(p.is_cuda for p in model.parameters())
    is_sharded = any(isinstance(p, DTensor) for p in model.parameters())
    found = model_facts(config) | gpu_facts(torch.cuda.get_device_name() if on_gpu else None)
    found |= stated(
        attn_implementation=getattr(config, "_attn_implementation", None),
        distributed="fsdp2" if is_sharded else None,
        world_size=world_size(),
    )
    if optimizer is not None:
        group, kind = next(groups_of(optimizer)), optimizer_of_class(type(optimizer))
        name = type(optimizer).__name__.lower() if kind is None else kind.name
        is_fused = group.is_fused and name.startswith("adam")
        rate = group.rate if group.initial is None else group.initial  # before warm-up
        found |= stated(weight_decay=group.weight_decay, learning_rate=rate)
        found |= {"optimizer": Fact((name, "adam_fused") if is_fused else (name,))}
    return found
