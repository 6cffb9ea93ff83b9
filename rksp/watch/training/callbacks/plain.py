"""Monitors and interventions in a plain training loop."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.recipe_files.said.facts import Facts
from rksp.watch.groups import is_first_rank, mean_over_ranks
from rksp.watch.interventions.base import Action, Intervention
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Monitor, Severity
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Latest, Sink, sentence
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention, make_monitors
from rksp.watch.training.known_faults import log_known_faults, stated
from rksp.watch.training.loop import Beside
from rksp.watch.training.recorded import Recorded


def scale_rates(optimizer: Optimizer, factor: Callable[[], float]) -> tuple[RemovableHandle, ...]:
    """Multiply the rates of an optimizer's groups by a factor while it steps.

    Schedules read and write the group's rate, some as a multiple of the last one. The rate is
    therefore restored after the step, bit for bit; at a factor of 1.0 it is never changed. The
    handles that are returned end it.

    Raises:
        InputError: `optimizer` is not a `torch.optim.Optimizer`, but a trainer's wrapper of one.
    """
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"Interventions need a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "use a torch optimizer, or train without interventions."
        )
    rates: list[Any] = []

    def lower(*_: object) -> None:
        rates[:] = [group["lr"] for group in optimizer.param_groups]
        if (scale := factor()) != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * scale

    def restore(*_: object) -> None:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    return optimizer.register_step_pre_hook(lower), optimizer.register_step_post_hook(restore)


_LOG = logging.getLogger("rksp")
_Method = Callable[..., Any]
_KEEP = 100_000  # readings in memory, some 50 MB; sinks have all of them


class LoopWatch:
    """Monitors and interventions for a plain training loop.

        watch = LoopWatch(model, optimizer, interventions=["backoff", "z_loss"])
        for batch in batches:
            watch.begin_step()                  # before the forward pass
            loss = model(**batch).loss
            watch.penalized(loss).backward()    # loss.backward() if nothing adds to the loss
            watch.after_backward(loss)          # before clipping
            optimizer.step()
            watch.after_update()                # before zero_grad
            optimizer.zero_grad()

    With accumulation, call `begin_step` before the first micro-batch, `penalized` in every one, and
    `after_backward` after the last one, with the mean loss. Alarms are returned, kept in
    `watch.alarms`, and logged as warnings of the logger `rksp`, as are, once, the advisories for
    the installed releases with this model and optimizer (`rksp audit`). Under `torch.distributed`
    every rank must make the calls: the loss is the mean over the ranks, and an alarm of one rank
    counts for all.

    Interventions act as in `rksp.watch.training.run`. With interventions, a step whose loss is not
    finite is dropped: its gradients are set to None. A factor of an intervention on the learning
    rate is applied to the optimizer's groups only while the optimizer steps, so the schedule never
    sees it.

    Attributes:
        watch: Readings, alarms, costs and silent monitors.
        should_stop: True once an alarm as severe as `stop_on` was raised.
        was_dropped: True if the gradients of this step were dropped.

    Args:
        model: The module that is called in the loop, unwrapped.
        optimizer: Its optimizer; without one, monitors of its state are silent.
        monitors: Names (`"all"`, `"gradient-norm:every=5"`) or monitors.
        rules: The rules of the alarms; give them the warm-up's length, `Rules(warmup_steps=...)`.
        sinks: Sinks for readings and alarms.
        stop_on: Set `should_stop` at an alarm at least this severe. If it is raised in
            `after_backward`, the gradients are dropped, so that the step changes no weight.
        interventions: Lines (`"backoff"`, `"zclip:threshold=3"`) or interventions, in the order in
            which they act.
        record: A file of runs to append to when the loop closes, for `--runs`; under
            `torch.distributed` the first rank writes.
        recipe: Fields of the recipe that the optimizer does not show, for the record: batch,
            warm-up, schedule, `max_steps`.
        facts: What a trainer knows of the run, for the advisories; by default the loop is your own,
            and the fields of `recipe` are known.

    Raises:
        NotCovered: An intervention finds nothing to act on in this model.
        InputError: Interventions are given without an optimizer.
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
        interventions: Sequence[str | Intervention] = (),
        record: str | Path | None = None,
        recipe: Mapping[str, object] | None = None,
        facts: Facts | None = None,
    ) -> None:
        while hasattr(optimizer, "optimizer"):  # a trainer's wrapper
            optimizer = definite(optimizer).optimizer
        self.model, self.optimizer = model, optimizer
        self.watch = Watch(make_monitors(monitors), rules, sinks, keep=_KEEP)
        self.stop_on = None if stop_on is None else Severity(stop_on)
        self.should_stop = self.was_dropped = self._was_asked = False
        self.step = -1
        self._interventions = [
            make_intervention(line) if isinstance(line, str) else line for line in interventions
        ]
        if self._interventions and self.optimizer is None:
            raise InputError("Interventions need the optimizer; call LoopWatch(model, optimizer).")
        must_agree = self.stop_on is not None
        self._beside = Beside(self.watch, self._interventions, must_agree=must_agree, keep=_KEEP)
        self._beside.bind(model, self.optimizer)
        for name, reason in self.watch.silent.items():
            _LOG.info("monitor %s is silent: %s", name, reason)
        self._adds_to_loss = [
            i.name for i in self._interventions if type(i).penalty is not Intervention.penalty
        ]
        self._rate_scale = 1.0
        self._handles: Sequence[RemovableHandle] = ()
        if self._interventions:
            self._handles = scale_rates(definite(self.optimizer), lambda: self._rate_scale)
        self._recorded = None
        if record is not None and is_first_rank():
            self._recorded = Recorded(record, model, self.optimizer, recipe)
        self._moment = self._now()
        if is_first_rank():
            own = stated(**(dict(recipe or {}) | {"trainer": "own", "custom_loop": True}))
            log_known_faults(model, self.optimizer, own if facts is None else facts)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The interventions' actions so far, grouped by intervention."""
        return tuple(action for i in self._interventions for action in i.actions)

    def begin_step(self, step: int | None = None) -> None:
        """Start the next step, or the given one."""
        self.step = self.step + 1 if step is None else step
        self._was_asked = self.was_dropped = False
        self._moment = self._now()
        self._rate_scale = self._beside.rate_scale
        self._beside.begin(self._moment)

    def penalized(self, loss: Tensor) -> Tensor:
        """Return the micro-batch's loss with the interventions' penalties, for `backward` alone."""
        penalty = self.penalty()
        return loss if penalty is None else loss + penalty

    def penalty(self) -> Tensor | None:
        """Return what interventions add to the loss of the micro-batch that was just computed."""
        self._was_asked = True
        return self._beside.penalty(self._moment)

    def after_backward(
        self, loss: Tensor | float | None = None, *, scale: float = 1.0
    ) -> list[Alarm]:
        """Read losses and gradients, and let interventions change the gradients.

        Args:
            loss: The step's mean loss, without the interventions' penalties.
            scale: The factor on the gradients that a loss scaler has not removed yet.

        Returns:
            The new alarms.

        Raises:
            InputError: An intervention adds to the loss, and its penalty was not asked for.
        """
        if self._adds_to_loss and not self._was_asked:
            raise InputError(
                f"{self._adds_to_loss[0]} adds to the loss, and backward was called without its "
                "term; call watch.penalized(loss).backward()."
            )
        value = float(loss.detach()) if isinstance(loss, Tensor) else loss
        self._moment = self._now()
        self._moment.loss = value = None if value is None else mean_over_ranks(value)
        if self._recorded is not None:
            self._recorded.note(value)
        is_finite = value is None or math.isfinite(value)
        with unscaled(self.model, scale, keep_changes=bool(self._interventions)):
            self._beside.after_backward(self._moment)
            alarms = self._heard()
            if is_finite and not self.should_stop:
                self._beside.before_update(self._moment)
        if self.should_stop or (self._interventions and not is_finite):
            self._drop(scale)
        return alarms

    def after_update(self) -> list[Alarm]:
        """Read weights and the optimizer's state, and return the new alarms.

        Do not call it for a skipped step.
        """
        if self.should_stop:
            return []
        self._beside.after_update(self._moment)
        return self._heard()

    def end_micro_batch(self) -> None:
        """End the backward pass of a micro-batch that is not the step's last."""
        self.watch.end_forward_backward()

    def close(self) -> None:
        """Remove the hooks, close the sinks and write the record."""
        self._beside.close()
        for handle in self._handles:
            handle.remove()
        if self._recorded is not None:
            self._recorded.write()

    def _now(self) -> Moment:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        rate = float(groups[0]["lr"]) * self._beside.rate_scale if groups else None
        return Moment(
            step=self.step, model=self.model, optimizer=self.optimizer, learning_rate=rate
        )

    def _drop(self, scale: float) -> None:
        """Change the gradients so that the optimizer's step has no effect."""
        self.was_dropped = True
        if scale == 1.0:
            self.model.zero_grad(set_to_none=True)
            return
        for p in self.model.parameters():  # infinite gradients make a loss scaler skip the step
            if p.grad is not None:
                p.grad.fill_(math.inf)

    def _heard(self) -> list[Alarm]:
        for alarm in self._beside.heard:
            _LOG.warning("step %d: %s", alarm.step, sentence(alarm))
            is_critical = alarm.severity is Severity.CRITICAL
            if self.stop_on is Severity.WARN or (self.stop_on is not None and is_critical):
                self.should_stop = True
        return self._beside.heard


@contextmanager
def unscaled(model: nn.Module, scale: float, *, keep_changes: bool = False) -> Iterator[None]:
    """Divide the gradients by a loss scale inside the block; restore the same tensors afterwards.

    Args:
        model: The model whose gradients are divided.
        scale: The loss scale.
        keep_changes: Keep the changes to the gradients that were made inside the block.
    """
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
        with torch.no_grad():
            for p, grad in held:
                if keep_changes and p.grad is not None:
                    grad.copy_(p.grad * scale)
                p.grad = grad


class OfTrainer:
    """What the callbacks of trainers share: sinks, and a loop that exists once training began.

    Attributes:
        loop: The monitored loop, from the start of training; `watch` is its watch.
    """

    begin: ClassVar[str]  # the call that starts training

    def __init__(self, *, sinks: Iterable[Sink] = (), log: bool = True, **options: Any) -> None:
        self._latest = Latest() if log else None
        self._sinks = (*sinks, self._latest) if self._latest else tuple(sinks)
        self._options = options
        self._replaced = ExitStack()
        self._losses: list[float] = []
        self.loop: LoopWatch | None = None

    @property
    def running(self) -> LoopWatch:
        """The monitored loop.

        Raises:
            InputError: Training has not begun.
        """
        if self.loop is None:
            raise InputError(f"Training has not begun; call {self.begin} first.")
        return self.loop

    @property
    def watch(self) -> Watch:
        """Readings, alarms, costs and silent monitors; raises as `running`."""
        return self.running.watch

    def _start(
        self, model: nn.Module, optimizer: Optimizer, *, is_main: bool, **options: Any
    ) -> None:
        """Build the monitored loop; only the main process writes to the sinks."""
        self._replaced.close()
        sinks = self._sinks if is_main else ()
        self.loop = LoopWatch(model, optimizer, sinks=sinks, **(self._options | options))

    def _finish(self) -> None:
        """Restore the trainer's methods and close the loop."""
        self._replaced.close()
        if self.loop is not None:
            self.loop.close()

    def _replace(self, owner: object, name: str, make: Callable[[_Method], _Method]) -> None:
        """Replace a method until the end; a method of the class stays in the class."""
        original = getattr(owner, name)
        if name in vars(owner):
            self._replaced.callback(setattr, owner, name, original)
        else:
            self._replaced.callback(delattr, owner, name)
        setattr(owner, name, functools.wraps(original)(make(original)))

    def _penalized(self, share: Callable[[], float]) -> Callable[[_Method], _Method]:
        """Return a wrapper of a trainer's `backward` that adds the interventions' penalty."""

        def make(backward: _Method) -> _Method:
            def run(loss: Tensor, *args: Any, **kwargs: Any) -> None:
                penalty = self.running.penalty()
                backward(loss if penalty is None else loss + share() * penalty, *args, **kwargs)

            return run

        return make


def loss_scale(trainer: Any) -> float:
    """Return the factor that a trainer's loss scaler put on the loss, and so on the gradients."""
    scaler = getattr(trainer, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0
