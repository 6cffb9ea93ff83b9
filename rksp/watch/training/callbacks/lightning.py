"""Monitors and interventions in the Trainer of Lightning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError
from rksp.watch.training.callbacks.plain import OfTrainer, loss_scale
from rksp.watch.training.known_faults import stated

# Lightning's words -> those of the advisories.
_PRECISIONS = {"32-true": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16",
               "bf16-true": "bf16-pure", "16-true": "fp16-pure"}  # fmt: skip
_SPREAD = {"ddp": "ddp", "fsdp": "fsdp1", "modelparallel": "fsdp2", "deepspeed": "deepspeed"}


class WatchCallback(OfTrainer, Callback):
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

    begin = "trainer.fit()"

    def __init__(
        self,
        *,
        model: Callable[[LightningModule], nn.Module] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._find = model or _only_child
        self._is_updated = False

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Build the monitored loop and wrap the module's `backward`.

        Raises:
            InputError: The module optimizes by hand or has several optimizers.
        """
        if not module.automatic_optimization or len(trainer.optimizers) != 1:
            raise InputError(
                "WatchCallback needs automatic optimization with one optimizer; use LoopWatch in "
                "the training_step of a module that optimizes by hand."
            )
        precision, spread = str(trainer.precision), type(trainer.strategy).__name__.lower()
        self._start(
            self._find(module),
            trainer.optimizers[0],
            is_main=trainer.is_global_zero,
            facts=stated(
                trainer="lightning",
                automatic_optimization=True,
                gradient_accumulation_steps=trainer.accumulate_grad_batches,
                max_grad_norm=trainer.gradient_clip_val,
                precision=_PRECISIONS.get(precision, precision),
                distributed=next((v for k, v in _SPREAD.items() if spread.startswith(k)), None),
            ),
        )
        share = lambda: loss_scale(trainer) / trainer.accumulate_grad_batches
        self._replace(module, "backward", self._penalized(share))

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        """Start a step at its first micro-batch."""
        if self.running.step != trainer.global_step:
            self._losses, self._is_updated = [], False
            self.running.begin_step(trainer.global_step)

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: Tensor) -> None:
        """Record the loss of the micro-batch."""
        share = float(loss.detach()) / loss_scale(trainer)  # of the step's mean
        self._losses.append(share)

    def on_after_backward(self, *_: object) -> None:
        """End the micro-batch's backward pass."""
        self.running.end_micro_batch()

    def on_before_optimizer_step(
        self, trainer: Trainer, module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Read the gradients and let interventions change them."""
        self.running.after_backward(sum(self._losses))
        self._is_updated = True

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: object) -> None:
        """Read the weights after an update and log; stop the run if an alarm asks for it."""
        if not self._is_updated:
            return
        self.running.after_update()
        self._is_updated = False
        trainer.should_stop |= self.running.should_stop
        if self._latest and self._latest.values:
            module.log_dict(self._latest.values, on_step=True, on_epoch=False)

    def on_train_end(self, *_: object) -> None:
        """Restore the module's `backward` and close the loop."""
        self._finish()

    def on_exception(self, *_: object) -> None:
        """Restore the module's `backward` and close the loop."""
        self._finish()


def _only_child(module: LightningModule) -> nn.Module:
    children = [child for child in module.children() if any(True for _ in child.parameters())]
    return children[0] if len(children) == 1 else module
