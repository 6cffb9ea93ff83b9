"""One trial: train one arm at one seed and summarize the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rksp.confirm.arms import Arm
from rksp.confirm.onset import first_alarms, leads, onset
from rksp.confirm.profiles import profile_curves
from rksp.datasets.batch import Batch
from rksp.documents.confirm import TrialReport
from rksp.own_runs.outcome import Curves, OutcomePolicy
from rksp.recipe import Recipe
from rksp.watch.faults.registry import make_fault
from rksp.watch.monitors.base import Alarm
from rksp.watch.monitors.registry import make_monitors
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.sinks import Sink
from rksp.watch.monitors.watch import Watch
from rksp.watch.training.checkpoints import Checkpoints
from rksp.watch.training.runner import Progress, RunRecord, run, without

CURVE_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Mean loss, in nats, on examples that no run trained on, before the first step and at the end.

    The loss after a run may be infinite or undefined.
    """

    before: float
    after: float


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
    """Train one arm with its monitors; make all parts afresh from their lines.

    Raises:
        InputError: A line cannot be used, or it finds nothing in this model.
    """
    recipe = arm.recipe(recipe)
    watch = Watch(make_monitors(monitors) if monitors else [], alarm_rules(recipe), sinks)
    return run(
        model.train(),
        batches,
        recipe,
        watch=watch,
        interventions=arm.make(),
        faults=[make_fault(line) for line in faults],
        seed=seed,
        checkpoints=checkpoints,
        progress=progress,
    )


def alarm_rules(recipe: Recipe) -> Rules:
    """Return the rules that judge the readings of a run of this recipe."""
    return Rules(warmup_steps=recipe.warmup_steps)


def seen(alarms: Sequence[Alarm], start: int | None, *, since: int) -> dict[str, dict[str, int]]:
    """Return the fields of a report that tell which monitor saw what.

    Alarms from step `since` on count as having seen the trouble. `alarms` counts episodes.
    """
    first = first_alarms(alarms, since=since)
    return {
        "first_alarms": first,
        "leads": leads(first, start),
        "alarms": dict(Counter(alarm.monitor for alarm in alarms if not alarm.is_escalation)),
    }


def sum_up(
    record: RunRecord,
    arm: str,
    seed: int,
    *,
    fault_step: int = 0,
    trivial_loss: float | None = None,
    held_out: HeldOut | None = None,
) -> TrialReport:
    """Return the report of a run; alarms from `fault_step` on count as having seen the trouble."""
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
        action_seconds=record.action_seconds,
        monitor_seconds=sum(record.monitor_seconds.values()),
        seconds=record.seconds,
        step_seconds=record.step_seconds,
        loss=_points(record.curves, "loss"),
        grad_norm=_points(record.curves, "grad_norm"),
        profiles=profile_curves(record.readings),
        checkpoint=record.checkpoint,
        trivial_loss=trivial_loss,
        untrained_loss=None if held_out is None else held_out.before,
        held_out_loss=held_out.after if held_out and math.isfinite(held_out.after) else None,
    )


def in_precision(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Convert the weights to the type that a `-pure` precision asks for."""
    kinds = {"bf16-pure": torch.bfloat16, "fp16-pure": torch.float16}
    return model.to(kinds[recipe.precision]) if recipe.precision in kinds else model


def _points(curves: Curves, name: str) -> list[tuple[int, float | None]]:
    values = getattr(curves, name)
    count = min(CURVE_POINTS, len(values))
    chosen = np.unique(np.linspace(0, len(values) - 1, count).round().astype(int))
    return [(int(i), float(values[i]) if np.isfinite(values[i]) else None) for i in chosen]
