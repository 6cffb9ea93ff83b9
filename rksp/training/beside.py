"""What goes along with a run: faults, monitors and interventions, each at its moment."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.faults.base import Fault
from rksp.interventions.base import Intervention
from rksp.moment import Moment
from rksp.monitors.alarm import Alarm, Severity
from rksp.monitors.watch import Watch
from rksp.training.checkpoints import Checkpoints
from rksp.training.loop import Companion, mean_over_ranks


class Beside(Companion):
    """Calls faults, monitors and interventions at their moments, in that order.

    Under `torch.distributed` an alarm of one rank is heard by the interventions of every rank, so
    that all of them take the same decisions.

    Args:
        watch, interventions, faults, checkpoints: As of `rksp.training.run`.
        must_agree: Whether ranks share alarms without an intervention too.
        keep: Newest actions of each intervention, and times of steps, that stay in memory at least;
            None for all.
    """

    def __init__(
        self,
        watch: Watch,
        interventions: Sequence[Intervention],
        faults: Sequence[Fault] = (),
        checkpoints: Checkpoints | None = None,
        *,
        must_agree: bool = False,
        keep: int | None = None,
    ) -> None:
        self.watch, self.interventions, self.faults = watch, interventions, faults
        self.checkpoints = checkpoints
        self.keep = keep
        self.must_agree = must_agree or bool(self.interventions)
        self.undone: list[tuple[int, int]] = []
        self.was_rolled_back = False  # in the current step
        self.step_seconds: list[float] = []
        self.heard: list[Alarm] = []  # in the last phase, on any rank
        self._started = 0.0
        self._alarms: list[Alarm] = []
        self._heeded = [0] * len(self.interventions)  # actions known of each
        self._handles: list[RemovableHandle] = []

    @property
    def rate_scale(self) -> float:
        return math.prod(intervention.rate_scale for intervention in self.interventions)

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        for intervention in self.interventions:
            intervention.bind(model, optimizer)
        self.watch.bind(model)
        self.watch.leave_out_of_advice(i.name for i in self.interventions)

    def begin(self, moment: Moment) -> None:
        self._started = time.perf_counter()
        self.was_rolled_back = False
        if self.checkpoints is not None:
            self.checkpoints.keep(moment.step, moment.model, moment.optimizer)
        for part in (*self.faults, *self.interventions):
            self._handles += part.arm(moment)
        self.watch.begin_step(moment.step)

    def penalty(self, moment: Moment) -> Tensor | None:
        terms = [i.penalty(moment) for i in self.interventions]
        terms = [term for term in terms if term is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def after_backward(self, moment: Moment) -> None:
        self._disarm()
        for fault in self.faults:
            fault.after_backward(moment)
        self._alarms = self.heard = self._agreed(self.watch.after_backward(moment))

    @contextmanager
    def repeating(self, moment: Moment) -> Iterator[None]:
        for part in (*self.faults, *self.interventions):
            self._handles += part.arm(moment)
        yield
        self._disarm()
        for fault in self.faults:  # one that strikes for long strikes again
            fault.after_backward(moment)

    def before_update(self, moment: Moment) -> bool:
        for intervention in self.interventions:
            intervention.before_update(moment)
        return bool(self.interventions)

    def after_update(self, moment: Moment) -> None:
        for part in (*self.faults, *self.interventions):
            part.after_update(moment)
        self._heed(moment)  # before monitors compare weights with those of earlier steps
        self.heard = self._agreed(self.watch.after_update(moment))
        for alarm in [*self._alarms, *self.heard]:
            if alarm.severity is Severity.CRITICAL and self.checkpoints is not None:
                self.checkpoints.write(alarm.step, moment.model)
            for intervention in self.interventions:
                intervention.on_alarm(alarm, moment)
        self._heed(moment)
        self.step_seconds.append(time.perf_counter() - self._started)
        _trim(self.step_seconds, self.keep)

    def close(self) -> None:
        self._disarm()
        self.watch.close()

    def _heed(self, moment: Moment) -> None:
        """Draws the consequences of what interventions did since the last call."""
        for place, intervention in enumerate(self.interventions):
            for action in intervention.actions[self._heeded[place] :]:
                if action.moved_weights:
                    self.watch.reset(f"{action.intervention}: {action.what}")
                undone = int(action.detail.get("undone", 0))
                if undone:
                    self.undone.append((moment.step + 1 - undone, moment.step + 1))
                    self.was_rolled_back = True
            _trim(intervention.actions, self.keep)
            self._heeded[place] = len(intervention.actions)

    def _agreed(self, alarms: list[Alarm]) -> list[Alarm]:
        """The alarms of all ranks, each once, where something may act on them."""
        return of_all_ranks(alarms) if self.must_agree else alarms

    def _disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _trim(entries: list, keep: int | None) -> None:
    """Drops the oldest entries of a list that is twice as long as it must be."""
    if keep is not None and len(entries) > 2 * keep:
        del entries[:-keep]


def of_all_ranks(alarms: list[Alarm]) -> list[Alarm]:
    """The alarms of every rank in the order of ranks, equal ones once; those given if alone."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()) or group.get_world_size() == 1:
        return alarms
    if not mean_over_ranks(float(len(alarms))):  # nothing to gather, as in nearly every step
        return alarms
    parts: list[list[Alarm]] = [[] for _ in range(group.get_world_size())]
    group.all_gather_object(parts, alarms)
    return list(dict.fromkeys(alarm for part in parts for alarm in part))
