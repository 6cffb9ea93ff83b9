"""Monitors in the Trainer of Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import lightning
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.errors import InputError
from rksp.monitors.alarm import Severity
from rksp.monitors.base import Monitor
from rksp.monitors.rules import Rules
from rksp.monitors.sinks import Sink
from rksp.monitors.watch import Watch
from rksp.training.callbacks.plain import LoopWatch


class WatchCallback(lightning.Callback):
    """All monitors in a `lightning.Trainer`:

        Trainer(callbacks=[WatchCallback(sinks=[JsonLines("monitor.jsonl")])])

    Lightning calls `training_step`, not the module, so the watched model is the module's only
    child with parameters, or what `model` finds in it. Gradients are seen unscaled and before
    clipping; a loss that is not finite is an alarm before the optimizer's step.

    Attributes:
        loop: The monitored loop, from the start of training on; `watch` is its watch.

    Args:
        model: From the Lightning module to the model that its `training_step` calls.
        monitors, rules, sinks: As of `LoopWatch`.
        stop_on: Stop training at an alarm of this severity; if it is raised before the
            optimizer's step, the gradients are dropped, so that the step changes no weight.
    """

    def __init__(
        self,
        *,
        model: Callable[[lightning.LightningModule], nn.Module] | None = None,
        monitors: Sequence[str | Monitor] = ("all",),
        rules: Rules | None = None,
        sinks: Iterable[Sink] = (),
        stop_on: Severity | str | None = None,
    ) -> None:
        self._find = model or _only_child
        self._monitors, self._rules, self._sinks = monitors, rules, tuple(sinks)
        self._stop_on = stop_on
        self._losses: list[float] = []
        self._is_updated = False
        self.loop: LoopWatch | None = None

    @property
    def watch(self) -> Watch:
        """Readings, alarms, costs and silent monitors.

        Raises:
            InputError: Training has not begun.
        """
        if self.loop is None:
            raise InputError("Nothing is watched yet; call trainer.fit() first.")
        return self.loop.watch

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if not module.automatic_optimization or len(trainer.optimizers) != 1:
            raise InputError(
                "WatchCallback follows automatic optimization with one optimizer; use LoopWatch in "
                "the training_step of a module that optimizes by hand."
            )
        self.loop = LoopWatch(
            self._find(module),
            trainer.optimizers[0],
            monitors=self._monitors,
            rules=self._rules,
            sinks=self._sinks if trainer.is_global_zero else (),
            stop_on=self._stop_on,
        )

    def on_train_batch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, batch, batch_idx: int
    ) -> None:
        if self.loop.step != trainer.global_step:
            self._losses, self._is_updated = [], False
            self.loop.begin_step(trainer.global_step)

    def on_before_backward(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, loss: Tensor
    ) -> None:
        scaler = trainer.scaler
        scale = scaler.get_scale() if scaler is not None and scaler.is_enabled() else 1.0
        self._losses.append(float(loss.detach()) / scale)  # a share of the step's mean

    def on_after_backward(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        self.loop.watch.end_forward_backward()

    def on_before_optimizer_step(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        optimizer: Optimizer,
    ) -> None:
        self.loop.after_backward(sum(self._losses))
        if self.loop.should_stop:
            self.loop.model.zero_grad(set_to_none=True)
            trainer.should_stop = True
        self._is_updated = not self.loop.should_stop

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        outputs,
        batch,
        batch_idx: int,
    ) -> None:
        if self._is_updated:
            self.loop.after_update()
            self._is_updated = False
            trainer.should_stop |= self.loop.should_stop

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self.loop.close()


def _only_child(module: lightning.LightningModule) -> nn.Module:
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    return children[0] if len(children) == 1 else module
