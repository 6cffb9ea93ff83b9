"""Monitors and interventions in the Trainer of transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe_files.table.names import schedule_of
from rksp.watch.monitors.rules import Rules
from rksp.watch.training.callbacks.plain import OfTrainer, loss_scale
from rksp.watch.training.known_faults import facts_of_arguments

if TYPE_CHECKING:
    from transformers import Trainer


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
    _trainer: Trainer | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: object, **given: Any
    ) -> None:
        """Build the monitored loop and wrap the Trainer's methods."""
        self._trainer = trainer = _caller()
        rules = Rules(warmup_steps=args.get_warmup_steps(state.max_steps))
        if self._options.get("record") is not None:
            self._options["recipe"] = recipe_of(args, state) | dict(
                self._options.get("recipe") or {}
            )
        self._start(
            given["model"],
            given["optimizer"],
            is_main=state.is_world_process_zero,
            rules=self._options.get("rules") or rules,
            facts=facts_of_arguments(args),
        )
        self._replace(trainer, "training_step", self._watched)
        share = lambda: 1 / trainer.current_gradient_accumulation_steps
        self._replace(trainer.accelerator, "backward", self._penalized(share))

    def on_step_begin(self, args: object, state: TrainerState, *_: object, **__: object) -> None:
        """Start a step."""
        self._losses = []
        self.running.begin_step(state.global_step)

    def on_optimizer_step(
        self, args: object, state: object, control: TrainerControl, **_: object
    ) -> None:
        """Read the weights unless the step was skipped; stop the run if an alarm asks for it."""
        was_skipped = definite(self._trainer).accelerator.optimizer_step_was_skipped
        if self.running.was_dropped or not was_skipped:
            self.running.after_update()
        control.should_training_stop |= self.running.should_stop

    def on_step_end(
        self, args: object, state: object, control: TrainerControl, **_: object
    ) -> None:
        """Log the latest values at a logging step."""
        if control.should_log and self._latest and self._latest.values:
            definite(self._trainer).log(dict(self._latest.values))
            control.should_log = True  # the call above cleared it before the Trainer's own log

    def on_train_end(self, *_: object, **__: object) -> None:
        """Restore the Trainer's methods and close the loop."""
        self._finish()

    def _watched(self, training_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def step(*args: Any, **kwargs: Any) -> Tensor:
            loss = training_step(*args, **kwargs)
            self._losses.append(float(loss))  # already a share of the step's mean
            accelerator = definite(self._trainer).accelerator
            if accelerator.sync_gradients:
                self.running.after_backward(sum(self._losses), scale=loss_scale(accelerator))
            else:
                self.running.end_micro_batch()
            return loss

        return step


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
