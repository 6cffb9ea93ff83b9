"""Back-off: return to a state from before the trouble, and continue at a lower rate."""

from __future__ import annotations

import math
import time
from collections import deque

from torch import nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Severity
from rksp.watch.run_state import RunState


class RateBackoff(Intervention):
    """Rolls weights and optimizer back on an alarm and lowers the rate.

    The run's state is copied every `every` steps, and the last copies are kept. An alarm returns to
    the newest copy that is at least `lead` steps older than the alarm, or to the oldest one. The
    data moves on, so the batches that led to the alarm are skipped, as in PaLM (Chowdhery et al.,
    2022, §5.1). The rate is multiplied by `factor` for `hold` steps and then recovers linearly in
    as many steps; another alarm multiplies it again. For `lead` steps after a rollback alarms are
    ignored, because they refer to steps that were undone.

    A copy holds weights and optimizer state in host memory. With AdamW this is three times the
    model, times `keep`.

    Args:
        factor: Factor on the rate at every alarm.
        every: Steps between two copies.
        keep: Number of copies kept.
        lead: Steps by which the trouble is older than its alarm.
        hold: Steps at the lowered rate.
        severity: The least severity that counts.
        limit: Number of rollbacks in a run; later alarms only lower the rate.
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
        self._states: deque[RunState] = deque(maxlen=keep)
        self._low = 1.0  # the scale that recovers
        self._alarmed = -math.inf

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Copy the initial state."""
        self._states.append(RunState.of(0, model, optimizer))

    def after_update(self, moment: Moment) -> None:
        """Update the rate's factor and copy the state if it is time."""
        since = moment.step - self._alarmed
        recovered = min(1.0, max(0.0, (since - self.hold) / self.hold))
        self.rate_scale = self._low + (1.0 - self._low) * recovered
        done = moment.step + 1
        if done % self.every == 0 and (moment.loss is None or math.isfinite(moment.loss)):
            start = time.perf_counter()
            self._states.append(RunState.of(done, moment.model, moment.optimizer))
            record(self, moment, "kept the state in host memory", since=start)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        """Roll back and lower the rate."""
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
        while len(self._states) > 1 and self._states[-1].step > alarm.step - self.lead:
            self._states.pop()
        state = self._states[-1]
        state.restore(moment.model, moment.optimizer)
        self.rollbacks += 1
        record(
            self,
            moment,
            "rolled back and lowered the rate",
            since=start,
            moved_weights=True,
            rate_scale=self.rate_scale,
            undone=float(moment.step + 1 - state.step),
        )
