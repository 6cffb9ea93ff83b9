"""Monitors in a loop under Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.monitors.alarm import Alarm, Severity
from rksp.monitors.base import Monitor
from rksp.monitors.rules import Rules
from rksp.monitors.sinks import Sink
from rksp.training.callbacks.plain import LoopWatch, unscaled

if TYPE_CHECKING:
    from accelerate import Accelerator


class AccelerateWatch(LoopWatch):
    """The three calls of `LoopWatch`, at every micro-batch inside of `accumulate`.

        watch = AccelerateWatch(accelerator, model, optimizer)
        for batch in batches:
            with accelerator.accumulate(model):
                watch.begin_step()
                loss = model(**batch).loss
                accelerator.backward(loss)
                watch.after_backward(loss)   # before clip_grad_norm_
                optimizer.step()
                watch.after_update()
                optimizer.zero_grad()

    It counts optimizer steps itself, averages the micro-batches' losses, and shows the gradients
    unscaled under fp16. Every process must make the calls.

    Args:
        accelerator: The one that prepared the model and the optimizer.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        monitors: Sequence[str | Monitor] = ("all",),
        rules: Rules | None = None,
        sinks: Iterable[Sink] = (),
        stop_on: Severity | str | None = None,
    ) -> None:
        self.accelerator = accelerator
        self._losses: list[float] = []
        super().__init__(
            accelerator.unwrap_model(model),
            optimizer,
            monitors=monitors,
            rules=rules,
            sinks=sinks if accelerator.is_main_process else (),
            stop_on=stop_on,
        )

    def begin_step(self, step: int | None = None) -> None:
        if not self._losses:
            super().begin_step(step)

    def after_backward(self, loss: Tensor | float | None = None) -> list[Alarm]:
        self._losses.append(float("nan") if loss is None else float(loss))
        if not self.accelerator.sync_gradients:
            self.watch.end_forward_backward()
            return []
        mean, self._losses = sum(self._losses) / len(self._losses), []
        with unscaled(self.model, loss_scale(self.accelerator)):
            return super().after_backward(None if loss is None else mean)

    def after_update(self) -> list[Alarm]:
        # An overflow under fp16 skips the step.
        is_step = (
            self.accelerator.sync_gradients and not self.accelerator.optimizer_step_was_skipped
        )
        return super().after_update() if is_step else []


def loss_scale(accelerator: Accelerator) -> float:
    """The factor on the loss, and so on the gradients, before they are unscaled."""
    scaler = getattr(accelerator, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
