"""Monitors and interventions in the Trainer of Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import lightning
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.watch.monitors.sinks import Latest, Sink
from rksp.watch.monitors.watch import Watch
from rksp.watch.training.callbacks.plain import LoopWatch
from rksp.watch.training.callbacks.replaced import Replaced


class WatchCallback(lightning.Callback):
    """All monitors, and interventions if asked for, in a `lightning.Trainer`.

        Trainer(callbacks=[WatchCallback(interventions=["backoff", "zclip"])])

    Lightning calls `training_step`, not the module. The watched model is therefore the module's
    only child with parameters, or the result of `model`. Gradients are read unscaled and before
    clipping. A loss that is not finite raises an alarm before the optimizer's step. Interventions
    add to the loss in the module's `backward`, so no logged loss includes their terms.

    Attributes:
        loop: The monitored loop, from the start of training; `watch` is its watch.

    Args:
        model: Returns the model that the Lightning module's `training_step` calls.
        sinks: Sinks for all readings and alarms, from the main process.
        log: Also send the latest values through `log_dict` of the module to its loggers: one number
            for each quantity, that of the worst layer.
        options: `monitors`, `rules`, `stop_on`, `interventions`, `record` and `recipe` of
            `LoopWatch`.
    """

    def __init__(
        self,
        *,
        model: Callable[[lightning.LightningModule], nn.Module] | None = None,
        sinks: Iterable[Sink] = (),
        log: bool = True,
        **options: Any,
    ) -> None:
        self._find = model or _only_child
        self._sinks, self._options = tuple(sinks), options
        self._latest = Latest() if log else None
        self._replaced = Replaced()
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
            raise InputError("Training has not begun; call trainer.fit() first.")
        return self.loop.watch

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Build the monitored loop and wrap the module's `backward`.

        Raises:
            InputError: The module optimizes by hand or has several optimizers.
        """
        if not module.automatic_optimization or len(trainer.optimizers) != 1:
            raise InputError(
                "WatchCallback needs automatic optimization with one optimizer; use LoopWatch in "
                "the training_step of a module that optimizes by hand."
            )
        sinks = self._sinks + ((self._latest,) if self._latest else ())
        self.loop = LoopWatch(
            self._find(module),
            trainer.optimizers[0],
            sinks=sinks if trainer.is_global_zero else (),
            **self._options,
        )
        self._replaced.restore()
        self._replaced.method(module, "backward", lambda call: self._penalized(call, trainer))

    def on_train_batch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, batch, batch_idx: int
    ) -> None:
        """Start a step at its first micro-batch."""
        if definite(self.loop).step != trainer.global_step:
            self._losses, self._is_updated = [], False
            definite(self.loop).begin_step(trainer.global_step)

    def on_before_backward(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, loss: Tensor
    ) -> None:
        """Record the loss of the micro-batch."""
        self._losses.append(float(loss.detach()) / _scale(trainer))  # a share of the step's mean

    def on_after_backward(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        """End the micro-batch's backward pass."""
        definite(self.loop).end_micro_batch()

    def on_before_optimizer_step(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        optimizer: Optimizer,
    ) -> None:
        """Read the gradients and let interventions change them."""
        definite(self.loop).after_backward(sum(self._losses))
        self._is_updated = True

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        module: lightning.LightningModule,
        outputs,
        batch,
        batch_idx: int,
    ) -> None:
        """Read the weights after an update and log; stop the run if an alarm asks for it."""
        if not self._is_updated:
            return
        definite(self.loop).after_update()
        self._is_updated = False
        trainer.should_stop |= definite(self.loop).should_stop
        if self._latest and self._latest.values:
            module.log_dict(self._latest.values, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Restore the module's `backward` and close the loop."""
        self._replaced.restore()
        definite(self.loop).close()

    def on_exception(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, error: BaseException
    ) -> None:
        """Restore the module's `backward` and close the loop."""
        self._replaced.restore()
        if self.loop is not None:
            self.loop.close()

    def _penalized(
        self, backward: Callable[..., None], trainer: lightning.Trainer
    ) -> Callable[..., None]:
        def run(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            penalty = definite(self.loop).penalty()
            if penalty is not None:
                share = _scale(trainer) / trainer.accumulate_grad_batches
                loss = loss + share * penalty
            backward(loss, *args, **kwargs)

        return run


def _scale(trainer: lightning.Trainer) -> float:
    """Return the factor of the loss scaler, or 1.0 without one."""
    scaler = trainer.scaler
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0


def _only_child(module: lightning.LightningModule) -> nn.Module:
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    return children[0] if len(children) == 1 else module
