"""The companion of a monitored run: faults, monitors and interventions, called in order."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.model import definite
from rksp.watch.faults.base import Fault
from rksp.watch.groups import mean_over_ranks, world_size
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Severity
from rksp.watch.monitors.watch import Watch
from rksp.watch.run_state import Checkpoints

_LOG = logging.getLogger("rksp")


class Beside:
    """Calls faults, monitors and interventions at their moments, in that order.

    Without any of them it does nothing.

    Under `torch.distributed` the interventions of every rank receive the alarms of all ranks, so
    that all ranks take the same decisions.

    Args:
        watch, interventions, faults, checkpoints: As for `rksp.watch.training.run`.
        must_agree: Share alarms between ranks even without interventions.
        keep: How many of each intervention's newest actions and of the newest step times stay in
            memory at least; None keeps all.
    """

    def __init__(
        self,
        watch: Watch | None = None,
        interventions: Sequence[Intervention] = (),
        faults: Sequence[Fault] = (),
        checkpoints: Checkpoints | None = None,
        *,
        must_agree: bool = False,
        keep: int | None = None,
    ) -> None:
        self.watch = watch or Watch([])
        self.interventions, self.faults, self.checkpoints = interventions, faults, checkpoints
        self.keep = keep
        self.must_agree = must_agree or bool(self.interventions)
        self.undone: list[tuple[int, int]] = []
        self.was_rolled_back = False  # in the current step
        self.step_seconds: list[float] = []
        self.action_seconds = 0.0  # host time of the interventions
        self.heard: list[Alarm] = []  # in the last phase, on any rank
        self._started = 0.0
        self._alarms: list[Alarm] = []
        self._heeded = [0] * len(self.interventions)  # number of known actions of each
        self._handles: list[RemovableHandle] = []

    @property
    def rate_scale(self) -> float:
        """The product of the interventions' factors on the learning rate."""
        return math.prod(intervention.rate_scale for intervention in self.interventions)

    def bind(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Bind the interventions and the monitors to the model."""
        for intervention in self.interventions:
            intervention.bind(model, definite(optimizer))
        self.watch.bind(model)
        self.watch.leave_out_of_advice(i.name for i in self.interventions)

    def begin(self, moment: Moment) -> None:
        """Keep a state if it is time, arm faults and interventions, and start the step."""
        self._started = time.perf_counter()
        self.was_rolled_back = False
        if self.checkpoints is not None:
            self.checkpoints.keep(moment.step, moment.model, definite(moment.optimizer))
        self._arm(moment)
        self.watch.begin_step(moment.step)

    def penalty(self, moment: Moment) -> Tensor | None:
        """Return the sum of the interventions' penalties, or None."""
        with self._timed():
            found = [i.penalty(moment) for i in self.interventions]
        terms = [term for term in found if term is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def after_backward(self, moment: Moment) -> None:
        """Remove the hooks, let the faults act, and read the gradients."""
        self._disarm()
        for fault in self.faults:
            fault.after_backward(moment)
        self._alarms = self.heard = self._agreed(self.watch.after_backward(moment))

    @contextmanager
    def repeating(self, moment: Moment) -> Iterator[None]:
        """Hang the hooks of the step again for a repetition of its passes."""
        self._arm(moment)
        yield
        self._disarm()
        for fault in self.faults:  # one that strikes for long strikes again
            fault.after_backward(moment)

    def before_update(self, moment: Moment) -> bool:
        """Let the interventions change the gradients; return whether there are any."""
        with self._timed():
            for intervention in self.interventions:
                intervention.before_update(moment)
        return bool(self.interventions)

    def after_update(self, moment: Moment) -> None:
        """Let faults and interventions act on the weights, read them, and pass the alarms on."""
        for fault in self.faults:
            fault.after_update(moment)
        with self._timed():
            for intervention in self.interventions:
                intervention.after_update(moment)
        self._heed(moment)  # before monitors compare weights with those of earlier steps
        self.heard = self._agreed(self.watch.after_update(moment))
        for alarm in [*self._alarms, *self.heard]:
            if alarm.severity is Severity.CRITICAL and self.checkpoints is not None:
                self.checkpoints.write(alarm.step, moment.model)
            with self._timed():
                for intervention in self.interventions:
                    intervention.on_alarm(alarm, moment)
        self._heed(moment)
        self.step_seconds.append(time.perf_counter() - self._started)
        _trim(self.step_seconds, self.keep)

    def close(self) -> None:
        """Remove the hooks, close the monitors, and let the interventions say what they did."""
        self._disarm()
        self.watch.close()
        for said in filter(None, (intervention.closing() for intervention in self.interventions)):
            _LOG.warning(said)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the host time of the interventions, without work that a device has queued."""
        started = time.perf_counter()
        yield
        self.action_seconds += time.perf_counter() - started

    def _arm(self, moment: Moment) -> None:
        parts: tuple[Fault | Intervention, ...] = (*self.faults, *self.interventions)
        for part in parts:
            self._handles += part.arm(moment)

    def _heed(self, moment: Moment) -> None:
        """Apply the consequences of the interventions' actions since the last call."""
        for place, intervention in enumerate(self.interventions):
            for action in intervention.actions[self._heeded[place] :]:
                if action.moved_weights:
                    self.watch.reset()
                undone = int(action.detail.get("undone", 0))
                if undone:
                    self.undone.append((moment.step + 1 - undone, moment.step + 1))
                    self.was_rolled_back = True
            _trim(intervention.actions, self.keep)
            self._heeded[place] = len(intervention.actions)

    def _agreed(self, alarms: list[Alarm]) -> list[Alarm]:
        """Return the alarms of all ranks in rank order, each once, if something may act on them."""
        # In nearly every step there is nothing to gather.
        is_alone = not self.must_agree or world_size() == 1
        if is_alone or not mean_over_ranks(float(len(alarms))):
            return alarms
        parts: list[list[Alarm]] = [[] for _ in range(world_size())]
        torch.distributed.all_gather_object(parts, alarms)
        return list(dict.fromkeys(alarm for part in parts for alarm in part))

    def _disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _trim(entries: list[Any], keep: int | None) -> None:
    """Drop the oldest entries of a list once it is twice as long as `keep`."""
    if keep is not None and len(entries) > 2 * keep:
        del entries[:-keep]
