"""Monitors in the Trainer of transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rksp.errors import InputError
from rksp.monitors.alarm import Alarm, Severity
from rksp.monitors.base import Monitor
from rksp.monitors.rules import Rules
from rksp.monitors.sinks import Sink
from rksp.monitors.watch import Watch
from rksp.training.callbacks.accelerate import loss_scale
from rksp.training.callbacks.plain import LoopWatch, unscaled

if TYPE_CHECKING:
    from transformers import Trainer


class WatchCallback(TrainerCallback):
    """All monitors in a `transformers.Trainer`:

        WatchCallback(sinks=[JsonLines("monitor.jsonl")]).attach(trainer)
        trainer.train()

    The Trainer hands callbacks neither the loss nor the gradients before they are clipped, and
    its log replaces a NaN loss by a mean (`logging_nan_inf_filter`). So `attach` also wraps
    `trainer.training_step`, the method that is documented for it: what it returns is the raw
    loss, and after the last micro-batch the gradients are whole and not yet clipped. A
    loss that is not finite is an alarm there, before the optimizer's step. The run is otherwise
    bitwise what it would be.

    Attributes:
        loop: The monitored loop, from the start of training on; `watch` is its watch.

    Args:
        monitors, rules, sinks: As of `LoopWatch`; default rules know the warm-up of the arguments.
        stop_on: Stop training at an alarm of this severity. If it is raised before the
            optimizer's step, the gradients are dropped, so that the step changes no weight.
    """

    def __init__(
        self,
        *,
        monitors: Sequence[str | Monitor] = ("all",),
        rules: Rules | None = None,
        sinks: Iterable[Sink] = (),
        stop_on: Severity | str | None = None,
    ) -> None:
        self._monitors, self._rules, self._sinks = monitors, rules, tuple(sinks)
        self._stop_on = stop_on
        self._trainer: Trainer | None = None
        self._losses: list[float] = []
        self.loop: LoopWatch | None = None

    def attach(self, trainer: Trainer) -> WatchCallback:
        """Adds this callback to a trainer and looks at its training steps; returns itself."""
        self._trainer = trainer
        trainer.add_callback(self)
        trainer.training_step = self._watched(trainer.training_step)
        return self

    @property
    def watch(self) -> Watch:
        """Readings, alarms, costs and silent monitors.

        Raises:
            InputError: Training has not begun.
        """
        if self.loop is None:
            raise InputError("Nothing is watched yet; call trainer.train() first.")
        return self.loop.watch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        if self._trainer is None:
            raise InputError(
                "WatchCallback must see the training steps; call callback.attach(trainer) in place "
                "of trainer.add_callback(callback)."
            )
        rules = self._rules or Rules(warmup_steps=args.get_warmup_steps(state.max_steps))
        self.loop = LoopWatch(
            kwargs["model"],
            kwargs["optimizer"],
            monitors=self._monitors,
            rules=rules,
            sinks=self._sinks if state.is_world_process_zero else (),
            stop_on=self._stop_on,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        self._losses = []
        self.loop.begin_step(state.global_step)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        if not self.loop.should_stop and not self._accelerator.optimizer_step_was_skipped:
            self.loop.after_update()
        control.should_training_stop |= self.loop.should_stop

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs
    ) -> None:
        self.loop.close()

    @property
    def _accelerator(self):
        return self._trainer.accelerator

    def _watched(self, training_step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(training_step)
        def step(*args: object, **kwargs: object) -> Tensor:
            loss = training_step(*args, **kwargs)
            self._after_micro_batch(loss)
            return loss

        return step

    def _after_micro_batch(self, loss: Tensor) -> list[Alarm]:
        self._losses.append(float(loss))  # already a share of the step's mean
        if not self._accelerator.sync_gradients:
            self.loop.watch.end_forward_backward()
            return []
        with unscaled(self.loop.model, loss_scale(self._accelerator)):
            alarms = self.loop.after_backward(sum(self._losses))
        if self.loop.should_stop:
            self.loop.model.zero_grad(set_to_none=True)
        return alarms
