"""Monitors and interventions in a loop that uses Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.watch.monitors.base import Alarm
from rksp.watch.monitors.sinks import Sink
from rksp.watch.training.callbacks.plain import LoopWatch, loss_scale
from rksp.watch.training.known_faults import stated

if TYPE_CHECKING:
    from accelerate import Accelerator


class AccelerateWatch(LoopWatch):
    """The calls of `LoopWatch`, made at every micro-batch inside of `accumulate`.

        watch = AccelerateWatch(accelerator, model, optimizer, interventions=["backoff"])
        for batch in batches:
            with accelerator.accumulate(model):
                watch.begin_step()
                loss = model(**batch).loss
                accelerator.backward(watch.penalized(loss))
                watch.after_backward(loss)   # before clip_grad_norm_
                optimizer.step()
                watch.after_update()
                optimizer.zero_grad()

    The watch counts optimizer steps itself, averages the micro-batches' losses, and sees the
    gradients unscaled under fp16. Every process must make the calls; the main one writes to the
    sinks.

    Args:
        accelerator: The accelerator that prepared the model and the optimizer.
        model: The prepared model.
        optimizer: The prepared optimizer.
        sinks: Sinks for readings and alarms, from the main process.
        options: Other options of `LoopWatch`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sinks: Iterable[Sink] = (),
        **options: Any,
    ) -> None:
        self.accelerator = accelerator
        self._losses: list[float] = []
        sinks = sinks if accelerator.is_main_process else ()
        precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
        facts = stated(
            trainer="accelerate",
            custom_loop=True,
            gradient_accumulation_steps=accelerator.gradient_accumulation_steps,
            precision=precision,
            distributed=_spread(accelerator),
        )
        bare = accelerator.unwrap_model(model)
        super().__init__(bare, optimizer, sinks=sinks, facts=facts, **options)

    def begin_step(self, step: int | None = None) -> None:
        """Start a step at its first micro-batch."""
        if not self._losses:
            super().begin_step(step)

    def after_backward(
        self, loss: Tensor | float | None = None, *, scale: float | None = None
    ) -> list[Alarm]:
        """Average the losses; at the last micro-batch act as `LoopWatch.after_backward`."""
        value = loss.detach() if isinstance(loss, Tensor) else loss
        self._losses.append(float("nan") if value is None else float(value))
        if not self.accelerator.sync_gradients:
            self.end_micro_batch()
            return []
        mean, self._losses = sum(self._losses) / len(self._losses), []
        scale = loss_scale(self.accelerator) if scale is None else scale
        return super().after_backward(None if loss is None else mean, scale=scale)

    def after_update(self) -> list[Alarm]:
        """Act as `LoopWatch.after_update` unless the step was skipped."""
        if not self.accelerator.sync_gradients:
            return []
        # An overflow under fp16 skips the step.
        was_skipped = self.accelerator.optimizer_step_was_skipped and not self.was_dropped
        return [] if was_skipped else super().after_update()


def _spread(accelerator: Accelerator) -> str | None:
    """Return how the run is spread, in the words of the advisories; None if it is not known."""
    name = accelerator.distributed_type.name
    if name == "FSDP":
        return "fsdp2" if getattr(accelerator, "is_fsdp2", False) else "fsdp1"
    return {"DEEPSPEED": "deepspeed", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp"}.get(name)
