"""Monitors and interventions in the Trainer of transformers."""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rksp.checks.advisories import audit, packages
from rksp.checks.conditions import gpu_facts, model_facts
from rksp.checks.environment import installed_here
from rksp.documents.finding import Level
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe_files.parse.document import Document
from rksp.recipe_files.registry import read_document
from rksp.recipe_files.said.facts import Fact, run_facts
from rksp.recipe_files.table.names import schedule_of
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Sink
from rksp.watch.training.callbacks.accelerate import loss_scale
from rksp.watch.training.callbacks.plain import LoopWatch, OfTrainer

if TYPE_CHECKING:
    from transformers import Trainer

_LOG = logging.getLogger(__name__)


class WatchCallback(OfTrainer, TrainerCallback):
    """All monitors, and interventions if asked for, in a `transformers.Trainer`.

        Trainer(model, args, callbacks=[WatchCallback(interventions=["backoff", "zclip"])])

    A Trainer does not give its callbacks itself, the loss, or the gradients before clipping, and
    its log replaces a NaN loss by a mean (`logging_nan_inf_filter`). The callback therefore finds
    the Trainer that calls it and wraps two methods during training. One is `training_step`: it
    returns the raw loss, and after it the gradients are complete and not yet clipped. The other is
    `accelerator.backward`, where interventions add to the loss. A loss that is not finite raises an
    alarm there, before the optimizer's step. Without interventions the run is bitwise unchanged.
    Interventions act as in `LoopWatch`. At the start it logs the advisories for the installed
    releases with these arguments (`rksp audit`).

    Attributes:
        loop: The monitored loop, from the start of training; `watch` is its watch.

    Args:
        rules: The rules of the alarms; by default they use the warm-up of the arguments.
        sinks: Sinks for all readings and alarms, from the main process.
        log: Also send the latest values through `trainer.log` at its logging steps, and so to the
            trackers of `report_to`: one number for each quantity, that of the worst layer.
        options: `monitors`, `stop_on`, `interventions`, `record` and `recipe` of `LoopWatch`; the
            recipe of the record comes from the arguments.
    """

    begin = "trainer.train()"

    def __init__(
        self,
        *,
        rules: Rules | None = None,
        sinks: Iterable[Sink] = (),
        log: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(sinks, log=log, **options)
        self._rules = rules
        self._trainer: Trainer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Build the monitored loop and wrap the Trainer's methods."""
        self._replaced.restore()
        self._trainer = trainer = _caller()
        rules = self._rules or Rules(warmup_steps=args.get_warmup_steps(state.max_steps))
        if self._options.get("record") is not None:
            self._options["recipe"] = recipe_of(args, state) | dict(
                self._options.get("recipe") or {}
            )
        if state.is_world_process_zero:
            _say_known_faults(args, kwargs["model"])
        else:
            self._options.pop("record", None)
        self.loop = LoopWatch(
            kwargs["model"],
            kwargs["optimizer"],
            rules=rules,
            sinks=self._sinks if state.is_world_process_zero else (),
            **self._options,
        )
        self._replaced.method(trainer, "training_step", self._watched)
        self._replaced.method(trainer.accelerator, "backward", self._penalized)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Start a step."""
        self._losses = []
        definite(self.loop).begin_step(state.global_step)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Read the weights unless the step was skipped; stop the run if an alarm asks for it."""
        was_skipped = definite(self._trainer).accelerator.optimizer_step_was_skipped
        if definite(self.loop).was_dropped or not was_skipped:
            definite(self.loop).after_update()
        control.should_training_stop |= definite(self.loop).should_stop

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Log the latest values at a logging step."""
        if control.should_log and self._latest and self._latest.values:
            definite(self._trainer).log(dict(self._latest.values))
            control.should_log = True  # the call above cleared it before the Trainer's own log

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        """Restore the Trainer's methods and close the loop."""
        self._replaced.restore()
        definite(self.loop).close()

    def _watched(self, training_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def step(*args: Any, **kwargs: Any) -> Tensor:
            loss = training_step(*args, **kwargs)
            self._losses.append(float(loss))  # already a share of the step's mean
            accelerator = definite(self._trainer).accelerator
            if accelerator.sync_gradients:
                definite(self.loop).after_backward(sum(self._losses), scale=loss_scale(accelerator))
            else:
                definite(self.loop).end_micro_batch()
            return loss

        return step

    def _penalized(self, backward: Callable[..., None]) -> Callable[..., None]:
        def run(loss: Tensor, **kwargs: Any) -> None:
            penalty = definite(self.loop).penalty()
            if penalty is not None:
                loss = loss + penalty / definite(self._trainer).current_gradient_accumulation_steps
            backward(loss, **kwargs)

        return run


def recipe_of(args: TrainingArguments, state: TrainerState) -> dict[str, object]:
    """Return the fields of a recipe that the arguments show, and the optimizer does not."""
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


def _say_known_faults(args: TrainingArguments, model: Module) -> None:
    """Log what is known of the installed releases with these arguments, but for mere notes."""
    config, name = getattr(model, "config", None), type(args).__name__
    is_trl = type(args).__module__.startswith("trl.")
    stage = {"objective": name.removesuffix("Config").lower()} if is_trl else {}
    data = {key: value for key, value in args.to_dict().items() if value is not None} | stage
    document = Document(path=Path(name), syntax="json", data=data)
    try:
        trainer = "trl" if is_trl else "hugging-face"
        read = read_document(document, trainer=trainer, devices=args.world_size)
    except InputError:  # arguments that no run file could have
        return
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    facts = {**run_facts(read), **model_facts(config), **gpu_facts(gpu)}
    attention = getattr(config, "_attn_implementation", None)
    if attention is not None:
        facts["attn_implementation"] = Fact((attention,))
    facts.pop("dtype", None)  # of the weights that were loaded before, which no argument shows
    for finding in audit(installed_here(packages()), facts, datetime.date.today()).findings:
        if finding.level is not Level.NOTE:
            _LOG.warning("%s %s: %s", finding.level, finding.code, finding.text)


def _caller() -> Trainer:
    """Return the Trainer on the call stack, because no argument of a callback leads to it."""
    from transformers import Trainer

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    raise InputError(
        "WatchCallback was not called by a transformers.Trainer; pass it to one, as in "
        "Trainer(callbacks=[WatchCallback()])."
    )
