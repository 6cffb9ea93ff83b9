"""Monitors in a loop of your own: three calls a step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.moment import Moment
from rksp.monitors.alarm import Alarm, Severity
from rksp.monitors.base import Monitor
from rksp.monitors.registry import make_monitors
from rksp.monitors.rules import Rules
from rksp.monitors.sinks import Sink, sentence
from rksp.monitors.watch import Watch

_LOG = logging.getLogger("rksp")
_KEEP = 100_000  # readings in memory, some 50 MB; sinks have all of them


class LoopWatch:
    """Monitors over a plain training loop.

        watch = LoopWatch(model, optimizer, sinks=[JsonLines("monitor.jsonl")])
        for batch in batches:
            watch.begin_step()              # before the forward pass
            loss = model(**batch).loss
            loss.backward()
            watch.after_backward(loss)      # before clipping
            optimizer.step()
            watch.after_update()            # before zero_grad
            optimizer.zero_grad()

    With accumulation, call `begin_step` before the first micro-batch, `after_backward` after the
    last one, with the mean loss. Alarms are returned, kept in `watch.alarms`, and logged as
    warnings of the logger `rksp`.

    Args:
        model: The module that is called in the loop, unwrapped.
        optimizer: Its optimizer; without one, monitors of its state are silent.
        monitors: Names (`"all"`, `"gradient-norm:every=5"`) or monitors.
        rules: Of the alarms; give the warm-up's length, `Rules(warmup_steps=...)`.
        sinks: Where readings and alarms go.
        stop_on: Set `should_stop` at an alarm at least this severe.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        monitors: Sequence[str | Monitor] = ("all",),
        rules: Rules | None = None,
        sinks: Iterable[Sink] = (),
        stop_on: Severity | str | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.watch = Watch(chosen_monitors(monitors), rules, sinks, keep=_KEEP)
        self.stop_on = None if stop_on is None else Severity(stop_on)
        self.should_stop = False
        self.step = -1
        for name, reason in self.watch.bind(model).items():
            _LOG.info("monitor %s is silent: %s", name, reason)

    def begin_step(self, step: int | None = None) -> None:
        """Starts a step: the next one, or the one that is named."""
        self.step = self.step + 1 if step is None else step
        self.watch.begin_step(self.step)

    def after_backward(self, loss: Tensor | float | None = None) -> list[Alarm]:
        """Reads losses and gradients: weights are still those of the forward pass."""
        value = float(loss.detach()) if isinstance(loss, Tensor) else loss
        return self._heard(self.watch.after_backward(self._moment(value)))

    def after_update(self) -> list[Alarm]:
        """Reads weights and the optimizer's state; not called for a step that is skipped."""
        return self._heard(self.watch.after_update(self._moment(None)))

    def close(self) -> None:
        """Takes the hooks off and closes the sinks."""
        self.watch.close()

    def _moment(self, loss: float | None) -> Moment:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return Moment(
            step=self.step,
            model=self.model,
            optimizer=self.optimizer,
            loss=loss,
            learning_rate=float(groups[0]["lr"]) if groups else None,
        )

    def _heard(self, alarms: list[Alarm]) -> list[Alarm]:
        for alarm in alarms:
            _LOG.warning("step %d: %s", alarm.step, sentence(alarm))
            is_critical = alarm.severity is Severity.CRITICAL
            if self.stop_on is Severity.WARN or (self.stop_on is not None and is_critical):
                self.should_stop = True
        return alarms


def chosen_monitors(monitors: Sequence[str | Monitor]) -> list[Monitor]:
    """Monitors from names, from monitors, or from both."""
    names = [name for name in monitors if isinstance(name, str)]
    return [m for m in monitors if isinstance(m, Monitor)] + (make_monitors(names) if names else [])


@contextmanager
def unscaled(model: nn.Module, scale: float) -> Iterator[None]:
    """Gradients divided by a loss scale inside; the very same tensors stand again afterwards."""
    if scale == 1.0:
        yield
        return
    held = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    try:
        with torch.no_grad():
            for p, grad in held:
                p.grad = grad / scale
        yield
    finally:
        for p, grad in held:
            p.grad = grad
