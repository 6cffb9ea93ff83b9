"""Back-off: return to a state from before the trouble, and go on at a lower rate."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.errors import InputError
from rksp.interventions.base import Intervention
from rksp.interventions.ledger import record
from rksp.models.anatomy.groups import local
from rksp.moment import Moment
from rksp.monitors.alarm import Alarm, Severity
from rksp.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A run's state in host memory.

    Attributes:
        step: The first step that has not been taken in it.
        model: Parameters and buffers by name.
        optimizer: What the optimizer keeps of each parameter; tensors and plain numbers.
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[Tensor, dict[str, object]]


@torch.no_grad()
def take(step: int, model: nn.Module, optimizer: Optimizer | None) -> Snapshot:
    """Copies weights, buffers and optimizer state; of sharded tensors the part of this rank."""
    return Snapshot(
        step=step,
        model={name: _kept(tensor) for name, tensor in _tensors(model).items()},
        optimizer={
            parameter: {key: _kept(value) for key, value in state.items()}
            for part in _parts(optimizer)
            for parameter, state in part.state.items()
        },
    )


@torch.no_grad()
def restore(snapshot: Snapshot, model: nn.Module, optimizer: Optimizer | None) -> None:
    """Puts a snapshot back in place, bit for bit; rates and other options stay as they are."""
    for name, tensor in _tensors(model).items():
        local(tensor).copy_(snapshot.model[name])
    for part in _parts(optimizer):
        for parameter in list(part.state):
            state = part.state[parameter]
            kept = snapshot.optimizer.get(parameter)
            if kept is None:  # it had not moved yet
                del part.state[parameter]
                continue
            for key, value in kept.items():
                if isinstance(value, Tensor):
                    local(state[key]).copy_(value)
                else:
                    state[key] = value


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, those left out of checkpoints too."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _parts(optimizer: Optimizer | None) -> tuple[Optimizer, ...]:
    """The optimizers that hold state: two where one stands for a pair."""
    return () if optimizer is None else tuple(getattr(optimizer, "parts", (optimizer,)))


def _kept(value: object) -> object:
    return local(value).to("cpu", copy=True) if isinstance(value, Tensor) else value


class RateBackoff(Intervention):
    """On an alarm rolls weights and optimizer back and lowers the rate.

    A snapshot is taken every `every` steps and the last ones are kept; an alarm returns to the
    newest that is at least `lead` steps older than itself, or to the oldest. The data goes on, so
    the batches that led there are skipped, as PaLM did (Chowdhery et al., 2022, §5.1). The rate
    stays at `factor` of itself for `hold` steps and then recovers linearly in as many; another
    alarm multiplies it again. For `lead` steps after a rollback alarms are ignored: they look at
    what has just been undone.

    A snapshot holds weights and optimizer state in host memory: with AdamW three times the model,
    times `keep`.

    Args:
        factor: On the rate, at every alarm.
        every: Steps between two snapshots.
        keep: Snapshots.
        lead: Steps that trouble is older than its alarm.
        hold: Steps at the lowered rate.
        severity: The least that counts.
        limit: Rollbacks in a run; after them alarms only lower the rate.
    """

    name = "backoff"

    def __init__(
        self,
        factor: float = 0.5,
        every: int = 20,
        keep: int = 4,
        lead: int = 20,
        hold: int = 100,
        severity: Severity = Severity.CRITICAL,
        limit: int = 10,
    ) -> None:
        super().__init__()
        if not 0 < factor < 1 or min(every, keep, hold) < 1 or lead < 0 or limit < 0:
            raise InputError(
                "Back-off needs 0 < factor < 1, every, keep and hold >= 1, lead and limit >= 0, "
                f"got factor={factor}, every={every}, keep={keep}, hold={hold}, lead={lead}, "
                f"limit={limit}."
            )
        self.factor, self.every, self.lead, self.hold = factor, every, lead, hold
        self.severity, self.limit = Severity(severity), limit
        self.rollbacks = 0
        self._snapshots: deque[Snapshot] = deque(maxlen=keep)
        self._low = 1.0  # the scale that recovers
        self._alarmed = -math.inf

    def bind(self, model: nn.Module, optimizer: Optimizer, recipe: Recipe) -> None:
        self._snapshots.append(take(0, model, optimizer))

    def after_update(self, moment: Moment) -> None:
        since = moment.step - self._alarmed
        recovered = min(1.0, max(0.0, (since - self.hold) / self.hold))
        self.rate_scale = self._low + (1.0 - self._low) * recovered
        done = moment.step + 1
        if done % self.every == 0 and (moment.loss is None or math.isfinite(moment.loss)):
            start = time.perf_counter()
            self._snapshots.append(take(done, moment.model, moment.optimizer))
            record(self, moment, "kept a snapshot in host memory", since=start)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        too_soon = moment.step - self._alarmed <= self.lead
        if too_soon or (self.severity is Severity.CRITICAL and alarm.severity is Severity.WARN):
            return
        start = time.perf_counter()
        self._alarmed = moment.step
        self._low = self.rate_scale = self.rate_scale * self.factor
        if self.rollbacks == self.limit:
            what = "lowered the rate"
            record(self, moment, what, since=start, rate_scale=self.rate_scale)
            return
        while len(self._snapshots) > 1 and self._snapshots[-1].step > alarm.step - self.lead:
            self._snapshots.pop()
        snapshot = self._snapshots[-1]
        restore(snapshot, moment.model, moment.optimizer)
        self.rollbacks += 1
        record(
            self,
            moment,
            "rolled back and lowered the rate",
            since=start,
            moved_weights=True,
            rate_scale=self.rate_scale,
            undone=float(moment.step + 1 - snapshot.step),
        )
