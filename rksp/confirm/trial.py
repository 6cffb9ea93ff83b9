"""One trial: one arm at one seed, trained and summed up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from rksp.batch import Batch
from rksp.confirm.arms import Arm
from rksp.confirm.onset import first_alarms, leads, onset
from rksp.faults.registry import make_fault
from rksp.monitors.alarm import Alarm
from rksp.monitors.registry import make_monitors
from rksp.monitors.rules import Rules
from rksp.monitors.sinks import Sink
from rksp.monitors.watch import Watch
from rksp.outcome import Curves, OutcomePolicy
from rksp.recipe import Recipe
from rksp.training.checkpoints import Checkpoints
from rksp.training.runner import Progress, RunRecord, run, without

CURVE_POINTS = 200


class TrialReport(BaseModel):
    """What a run left behind, in numbers that a table or a figure needs.

    Attributes:
        arm, seed: Which run.
        outcome: As `rksp.training.runner.judge_alone` says.
        final_loss: Mean over the last tenth of the planned steps; None if the run stopped before.
        trivial_loss: Of always answering with the frequencies of the labels it was trained on.
        steps: Steps taken, `undone` of them taken back by a rollback.
        onset: Step from which the loss shows the failure; None if it does not.
        first_alarms: Step of the first alarm of each monitor that gave one, after the fault.
        leads: Steps by which it came before the onset.
        alarms: Number of alarms of each monitor, before the fault too.
        silent: Monitors that did not measure, with the reason.
        actions: How often each intervention did something.
        action_seconds, monitor_seconds: Host time of interventions (without what they add to the
            backward pass) and of monitors.
        seconds: Of the whole run.
        step_seconds: Of the median step; None in a report of an older version.
        loss, grad_norm: (step, value), at most 200 evenly spaced steps; None where not finite.
        checkpoint: State from before the first critical alarm, if one was written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: str
    seed: int
    outcome: str
    final_loss: float | None
    steps: int
    undone: int
    onset: int | None
    first_alarms: dict[str, int]
    leads: dict[str, int]
    alarms: dict[str, int]
    silent: dict[str, str]
    actions: dict[str, int]
    action_seconds: float
    monitor_seconds: float
    seconds: float
    step_seconds: float | None = None
    loss: list[tuple[int, float | None]]
    grad_norm: list[tuple[int, float | None]]
    checkpoint: str | None = None
    trivial_loss: float | None = None


def train_arm(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    arm: Arm,
    *,
    seed: int,
    faults: Sequence[str] = (),
    monitors: Sequence[str] = (),
    sinks: Sequence[Sink] = (),
    checkpoints: Checkpoints | None = None,
    progress: Progress = lambda step, loss: None,
) -> RunRecord:
    """Trains one arm, watched; parts are made afresh from their lines.

    Raises:
        InputError: A line cannot be used, or finds nothing in this model.
    """
    rated = recipe.model_copy(update={"learning_rate": recipe.learning_rate * arm.rate})
    watch = Watch(make_monitors(monitors) if monitors else [], alarm_rules(recipe), sinks)
    return run(
        model.train(),
        batches,
        rated,
        watch=watch,
        interventions=arm.make(),
        faults=[make_fault(line) for line in faults],
        seed=seed,
        checkpoints=checkpoints,
        progress=progress,
    )


def alarm_rules(recipe: Recipe) -> Rules:
    """The rules by which the readings of a run of this recipe are judged."""
    return Rules(warmup_steps=recipe.warmup_steps)


def seen(alarms: Sequence[Alarm], start: int | None, *, since: int) -> dict[str, dict[str, int]]:
    """The fields of a report that say who saw what; alarms from `since` on saw the trouble."""
    first = first_alarms(alarms, since=since)
    return {
        "first_alarms": first,
        "leads": leads(first, start),
        "alarms": dict(Counter(alarm.monitor for alarm in alarms)),
    }


def sum_up(
    record: RunRecord,
    arm: str,
    seed: int,
    *,
    fault_step: int = 0,
    trivial_loss: float | None = None,
) -> TrialReport:
    """The report of a run; alarms from `fault_step` on count as seeing the trouble."""
    policy = OutcomePolicy()
    counted = without(record.curves, record.undone)
    final = policy.final_loss(counted)
    start = onset(record.curves, policy)
    return TrialReport(
        arm=arm,
        seed=seed,
        outcome=record.outcome.value,
        final_loss=final if math.isfinite(final) else None,
        steps=len(record.curves.loss),
        undone=len(record.curves.loss) - len(counted.loss),
        onset=start,
        **seen(record.alarms, start, since=fault_step),
        silent=dict(record.silent),
        actions=dict(Counter(action.intervention for action in record.actions)),
        action_seconds=sum(action.seconds for action in record.actions),
        monitor_seconds=sum(record.monitor_seconds.values()),
        seconds=record.seconds,
        step_seconds=record.step_seconds,
        loss=_points(record.curves, "loss"),
        grad_norm=_points(record.curves, "grad_norm"),
        checkpoint=record.checkpoint,
        trivial_loss=trivial_loss,
    )


def in_precision(model: nn.Module, recipe: Recipe) -> nn.Module:
    """The model with its weights in the type that a `-pure` precision asks for."""
    kinds = {"bf16-pure": torch.bfloat16, "fp16-pure": torch.float16}
    return model.to(kinds[recipe.precision]) if recipe.precision in kinds else model


def _points(curves: Curves, name: str) -> list[tuple[int, float | None]]:
    values = getattr(curves, name)
    count = min(CURVE_POINTS, len(values))
    chosen = np.unique(np.linspace(0, len(values) - 1, count).round().astype(int))
    return [(int(i), float(values[i]) if np.isfinite(values[i]) else None) for i in chosen]
