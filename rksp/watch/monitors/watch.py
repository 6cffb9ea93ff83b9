"""The watch: arms monitors at their steps, reads them, and stores their readings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, RkspError, summary
from rksp.ground.model import definite
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Alarm, Monitor, Reading
from rksp.watch.monitors.rules import Judge, Rules
from rksp.watch.monitors.sinks import Sink

T = TypeVar("T")
# Errors that a monitor may raise on a model it was not written for; any other one is a bug.
_EXPECTED = (
    RkspError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)


class Watch:
    """A set of monitors over one run.

    Call `bind` once, and in every step `begin_step` before the forward pass, `after_backward`
    before clipping, and `after_update` after the optimizer's step while the gradients are still
    there, as `rksp.watch.training.train` does. With gradient accumulation, only the first
    micro-batch is looked at.

    The watch keeps monitors from changing the run. Their hooks run without a graph and outside of
    autocast (whose cache would otherwise keep weights without a gradient), in the first forward
    pass of the step that builds a graph, and not when activation checkpointing repeats it. Their
    return values are dropped, so they cannot change the pass. The global generators are restored
    after every call. A monitor that raises is switched off, and `silent` says why. If the model
    itself is never called (only parts of it are), passes cannot be told apart: call
    `end_forward_backward` after the first backward.

    A compiled model does not run hooks that were registered after `torch.compile`: bind before
    compilation, or watch the eager model. Under FSDP every rank must call every method, because
    monitors may communicate.

    Args:
        monitors: Monitors, each kind once.
        rules: The rules of the alarms.
        sinks: Sinks for readings and alarms.
        keep: Number of readings that stay in memory; None keeps all.
        clock: Returns seconds.

    Attributes:
        monitors: All monitors in the given order.
        silent: Monitors that do not measure, with the reason, from `bind` on.
        readings: The readings in order; in a long run at least the newest `keep`.
        alarms: All alarms in order.
        seconds: Host time spent per monitor, hooks included. On a device that computes
            asynchronously this is the time to launch, not to compute.
    """

    def __init__(
        self,
        monitors: Sequence[Monitor],
        rules: Rules | None = None,
        sinks: Iterable[Sink] = (),
        *,
        keep: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        names = [monitor.name for monitor in monitors]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"Monitor {twice[0]!r} was given twice; give each once.")
        self.monitors = tuple(monitors)
        self.rules = rules or Rules()
        self.silent: dict[str, str] = {}
        self.readings: list[Reading] = []
        self.alarms: list[Alarm] = []
        self.seconds = dict.fromkeys(names, 0.0)
        self._sinks, self._keep, self._clock = tuple(sinks), keep, clock
        self._judge = Judge(self.rules)
        self._model: nn.Module | None = None
        self._devices: list[int] = []  # CUDA devices of the model
        self._kind = "cpu"
        self._forward: set[int] = set()  # identities of the dictionaries of forward hooks
        self._step = -1
        self._handles: list[RemovableHandle] = []
        self._is_live = False  # true in the step's first forward pass, in which hooks may look
        self._is_spent = False  # that pass is over

    def bind(self, model: nn.Module) -> dict[str, str]:
        """Let every monitor find what it measures.

        Returns:
            Monitors that cannot measure this model, with the reason.
        """
        self._model = model
        devices = {p.device for p in model.parameters()}
        self._kind = next((device.type for device in devices), "cpu")
        self._devices = sorted(d.index for d in devices if d.type == "cuda")
        self._forward = {
            id(hooks)
            for module in model.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        }
        self.silent.clear()
        for monitor in self.monitors:
            reason = self._guard(monitor, partial(monitor.bind, model))
            if reason:
                self.silent.setdefault(monitor.name, reason)
        return dict(self.silent)

    def leave_out_of_advice(self, interventions: Iterable[str]) -> None:
        """Tell the rules which interventions act in the run, before its first step."""
        self.rules = replace(self.rules, active=self.rules.active | frozenset(interventions))
        self._judge = Judge(self.rules)

    def begin_step(self, step: int) -> None:
        """Arm the monitors that sample this step; call it before the first forward pass."""
        model = self._model
        if model is None:
            raise InputError("The watch has no model; call bind(model) before the first step.")
        self.end_forward_backward()
        self._step, self._is_live, self._is_spent = step, True, False
        armed = False
        for monitor in self._sampled(step):
            monitor.forget()
            for handle in self._guard(monitor, partial(monitor.arm, model)) or ():
                self._handles.append(handle)
                self._wrap(monitor, handle)
                armed = True
        if armed:  # these run first and last, around every monitor's hooks on the model
            first = model.register_forward_pre_hook(self._enter, prepend=True)
            self._handles += [first, model.register_forward_hook(self._leave)]

    def end_forward_backward(self) -> None:
        """Remove the hooks; with accumulation, call it after the first micro-batch's backward.

        The second forward pass of a step and `after_backward` do it too.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def after_backward(self, moment: Moment) -> list[Alarm]:
        """Read the monitors of gradients, unscaled and before clipping, with the weights unchanged.

        A loss or gradient that is not finite is reported here, in time to skip the step.
        """
        self.end_forward_backward()
        return self._read(moment, Phase.GRADIENT)

    def after_update(self, moment: Moment) -> list[Alarm]:
        """Read the monitors of weights, after the optimizer's step."""
        return self._read(moment, Phase.UPDATE)

    def raise_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Keep and write alarms that no monitor's reading raised."""
        if alarms:
            self.alarms += alarms
            for sink in self._sinks:
                sink.write((), alarms)

    def reset(self) -> None:
        """Tell the monitors that a rollback or an intervention moved the weights."""
        for monitor in self._active():
            self._guard(monitor, monitor.reset)

    def close(self) -> None:
        """Remove all hooks and close the sinks."""
        self.end_forward_backward()
        for sink in self._sinks:
            sink.close()

    def _active(self) -> Iterator[Monitor]:
        return (monitor for monitor in self.monitors if monitor.name not in self.silent)

    def _sampled(self, step: int) -> list[Monitor]:
        return [monitor for monitor in self._active() if step % definite(monitor.every) == 0]

    def _read(self, moment: Moment, phase: Phase) -> list[Alarm]:
        if moment.step != self._step:
            raise InputError(
                f"Step {moment.step} is read, but begin_step was last called for {self._step}; "
                "call begin_step before every forward pass."
            )
        found: list[Reading] = []
        for monitor in self._sampled(moment.step):
            if monitor.phase is phase:
                found += self._guard(monitor, partial(monitor.read, moment)) or []
                monitor.forget()
        moment.shared.clear()
        alarms = self._judge.feed(found)
        self.readings += found
        if self._keep is not None and len(self.readings) > 2 * self._keep:
            del self.readings[: -self._keep]
        self.alarms += alarms
        for sink in self._sinks:
            sink.write(found, alarms)
        return alarms

    @contextmanager
    def _guarded(self, monitor: Monitor) -> Iterator[None]:
        """Time a monitor's code, and switch the monitor off if it raises."""
        started = self._clock()
        try:
            yield
        except _EXPECTED as error:
            where = "before the first step" if self._step < 0 else f"at step {self._step}"
            self.silent[monitor.name] = f"switched off {where}: {summary(error)}"
        finally:
            self.seconds[monitor.name] += self._clock() - started

    def _guard(self, monitor: Monitor, call: Callable[[], T]) -> T | None:
        with self._guarded(monitor), torch.random.fork_rng(devices=self._devices):
            return call()
        return None

    def _wrap(self, monitor: Monitor, handle: RemovableHandle) -> None:
        hooks = definite(handle.hooks_dict_ref())
        hook, is_forward = hooks[handle.id], id(hooks) in self._forward

        def guarded(*args: object) -> None:
            if monitor.name in self.silent or (is_forward and not self._is_live):
                return
            with self._guarded(monitor), torch.no_grad(), self._without_autocast():
                hook(*args)

        hooks[handle.id] = guarded

    def _without_autocast(self) -> AbstractContextManager[object]:
        if torch.is_autocast_enabled(self._kind):
            return torch.autocast(self._kind, enabled=False)
        return nullcontext()

    def _enter(self, module: nn.Module, args: object) -> None:
        is_training = torch.is_grad_enabled()  # false in an evaluation before the step's own pass
        if is_training and self._is_spent:
            self.end_forward_backward()
        self._is_live = is_training and not self._is_spent

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        self._is_spent |= self._is_live
        self._is_live = not self._is_spent
