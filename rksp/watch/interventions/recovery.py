"""Recovery: return to a state from before the trouble, or compute a suspicious step again."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.model import definite
from rksp.watch.groups import local, of_all_ranks, world_size
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment, Repeat
from rksp.watch.monitors.base import Alarm, Severity
from rksp.watch.run_state import RunState


@dataclass(eq=False)
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
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    every: PositiveInt = 20
    keep: PositiveInt = 4
    lead: NonNegativeInt = 20
    hold: PositiveInt = 100
    severity: Severity = Severity.CRITICAL
    limit: NonNegativeInt = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rollbacks = 0
        self._states: deque[RunState] = deque(maxlen=self.keep)
        self._low = 1.0  # the scale that recovers
        self._alarmed = -math.inf

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._states.append(RunState.of(0, model, optimizer))

    def after_update(self, moment: Moment) -> None:
        since = moment.step - self._alarmed
        recovered = min(1.0, max(0.0, (since - self.hold) / self.hold))
        self.rate_scale = self._low + (1.0 - self._low) * recovered
        done = moment.step + 1
        if done % self.every == 0 and (moment.loss is None or math.isfinite(moment.loss)):
            self._states.append(RunState.of(done, moment.model, moment.optimizer))
            self.record(moment, "kept the state in host memory")

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        too_soon = moment.step - self._alarmed <= self.lead
        if too_soon or (self.severity is Severity.CRITICAL and alarm.severity is Severity.WARN):
            return
        self._alarmed = moment.step
        self._low = self.rate_scale = self.rate_scale * self.factor
        if self.rollbacks == self.limit:
            self.record(moment, "lowered the rate", rate_scale=self.rate_scale)
            return
        while len(self._states) > 1 and self._states[-1].step > alarm.step - self.lead:
            self._states.pop()
        state = self._states[-1]
        state.restore(moment.model, moment.optimizer)
        self.rollbacks += 1
        self.record(
            moment,
            "rolled back and lowered the rate",
            moved_weights=True,
            rate_scale=self.rate_scale,
            undone=float(moment.step + 1 - state.step),
        )


MIN_SAMPLES, _WINDOW = 8, 64  # norms
_TOLERANCE = 1e-3  # relative distance of two gradients that count as equal


@dataclass(eq=False)
class RepeatStep(Intervention):
    """Computes a suspicious step again, to tell a hard batch from a device that miscalculated.

    A step is suspicious if its gradient norm is above `ratio` times the median of the last
    64. Its gradient g is then computed again from the same batches, with the same
    random numbers, as g'. If ‖g − g'‖ ≤ 0.001 ‖g'‖ the batch is hard and the step stands. If
    not, the gradient is computed a third time, as g''. Where g' and g'' agree, the defect was
    transient and the step takes g'; where they do not, the step is dropped. Detection by a jump
    and the repetition are those of Altenbernd et al. (2026, arXiv 2604.00726); the constants are
    ours.

    In a run of several processes the detail `rank` names the one whose own loss differed most
    between the repetitions. It is -1 if no loss differed, as after a defect of the backward pass.
    A defect that gives the same wrong number every time is not seen, and neither is a changed
    weight. Needs a loop that can repeat a step, as `rksp.watch.training.run` does.

    Args:
        ratio: Of the gradient norm to its median.
    """

    name = "repeat_step"
    ratio: Annotated[float, Field(gt=1)] = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._norms: deque[float] = deque(maxlen=_WINDOW)

    def before_update(self, moment: Moment) -> None:
        params = [p for p in moment.model.parameters() if p.grad is not None]
        norm = _norm([definite(p.grad) for p in params])
        usual = statistics.median(self._norms) if len(self._norms) >= MIN_SAMPLES else math.inf
        if moment.repeat is None or norm <= self.ratio * usual:
            self._norms.append(norm)
            return
        first = [definite(p.grad) for p in params]
        second = moment.repeat()
        distance, rank = _distance(first, second), -1
        what = "repeated a hard step"
        if distance > _TOLERANCE:
            rank = _culprit(second.moved)
            third = moment.repeat()
            is_transient = _distance(second.gradients, third) <= _TOLERANCE
            what = "took the repeated gradient" if is_transient else "dropped the step"
            for p, gradient in zip(params, second.gradients, strict=True):
                p.grad = gradient if is_transient else None
        self.record(moment, what, ratio=norm / usual, distance=distance, rank=float(rank))


def _norm(gradients: Sequence[Tensor]) -> float:
    return float(torch.stack([local(g).double().norm() for g in gradients]).norm())


def _distance(gradients: Sequence[Tensor], other: Repeat) -> float:
    pairs = zip(gradients, other.gradients, strict=True)
    apart = _norm([local(g).double() - local(o).double() for g, o in pairs])
    ratio = apart / max(_norm(other.gradients), 1e-30)
    return ratio if math.isfinite(ratio) else math.inf


def _culprit(moved: float) -> int:
    """Return the rank whose own loss moved most between the repetitions; -1 if none did."""
    if world_size() == 1:
        return -1
    own = torch.tensor(moved if math.isfinite(moved) else 1e30, dtype=torch.float64)
    largest, rank = of_all_ranks(own).max(0)
    return int(rank) if float(largest) > _TOLERANCE else -1
