"""The monitored run: the plain loop with monitors, interventions and faults."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rksp.datasets.batch import Batch
from rksp.own_runs.outcome import Curves, Outcome, OutcomePolicy
from rksp.recipe import Recipe
from rksp.watch.faults.base import Fault
from rksp.watch.interventions.base import Action, Intervention
from rksp.watch.monitors.base import Alarm, Reading
from rksp.watch.monitors.watch import Watch
from rksp.watch.training.beside import Beside
from rksp.watch.training.checkpoints import Checkpoints
from rksp.watch.training.loop import Stop, hopeless, train

Progress = Callable[[int, float], None]  # (step, loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of a monitored run.

    Attributes:
        curves: Raw losses and gradient norms of every step, including undone ones.
        outcome: `judge_alone` of the steps that were not undone.
        readings: The monitors' readings, in order.
        alarms: The alarms, in order.
        actions: The actions of every intervention, in order.
        silent: Monitors that did not measure, with the reason.
        undone: The ranges (first step, step after the last) that rollbacks undid.
        monitor_seconds: Host time of every monitor.
        action_seconds: Host time of the interventions, without their hooks.
        seconds: Wall time of the run.
        step_seconds: Wall time of the median step, including monitors and interventions.
        checkpoint: The file with a state from before the trouble, if one was written.
    """

    curves: Curves
    outcome: Outcome
    readings: tuple[Reading, ...]
    alarms: tuple[Alarm, ...]
    actions: tuple[Action, ...]
    silent: Mapping[str, str]
    undone: tuple[tuple[int, int], ...]
    monitor_seconds: Mapping[str, float]
    action_seconds: float
    seconds: float
    step_seconds: float
    checkpoint: str | None = None


def run(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    *,
    watch: Watch | None = None,
    interventions: Sequence[Intervention] = (),
    faults: Sequence[Fault] = (),
    seed: int = 0,
    stop: Stop = hopeless,
    policy: OutcomePolicy | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress = lambda step, loss: None,
) -> RunRecord:
    """Train `model` in place as `train` does, with monitors, interventions and faults.

    With monitors alone the result is bitwise equal to that of `train`. A run ends when its loss is
    not finite, unless an intervention rolled it back at that step.

    Args:
        model: A model in training mode.
        batches: As for `train`.
        recipe: As for `train`; the faults may change it first.
        watch: Monitors and rules; its alarms reach the interventions.
        interventions: Interventions in the order in which they act.
        faults: Faults in the order in which they strike.
        seed: Seed of dropout and of the faults; the global generators are restored.
        stop: As for `train`.
        policy: The policy that labels the run.
        checkpoints: Writes a state from before the first critical alarm or, if the run was stopped
            without one, from before that step.
        progress: Called after every step.

    Raises:
        NotCovered: A fault or an intervention finds nothing to act on in this model.
    """
    for fault in faults:
        recipe = fault.recipe(recipe)
        per_step = recipe.gradient_accumulation_steps
        batches = fault.batches(batches, per_step=per_step, seed=seed)
    for fault in faults:
        fault.bind(model, seed=seed)
    beside = Beside(watch, interventions, faults, checkpoints)

    def ends(losses: list[float], norms: list[float]) -> bool:
        step = len(losses) - 1
        progress(step, losses[-1])
        is_over = stop(losses, norms) and not beside.was_rolled_back
        if is_over and checkpoints is not None:
            checkpoints.write(step, model)
        return is_over

    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    started = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            curves = train(model, batches, recipe, stop=ends, companion=beside)
    finally:
        beside.close()
    return RunRecord(
        curves=curves,
        outcome=judge_alone(without(curves, beside.undone), policy or OutcomePolicy()),
        readings=tuple(beside.watch.readings),
        alarms=tuple(beside.watch.alarms),
        actions=tuple(a for i in interventions for a in i.actions),
        silent=dict(beside.watch.silent),
        undone=tuple(beside.undone),
        monitor_seconds=dict(beside.watch.seconds),
        action_seconds=beside.action_seconds,
        seconds=time.perf_counter() - started,
        step_seconds=statistics.median(beside.step_seconds),
        checkpoint=str(checkpoints.written) if checkpoints and checkpoints.written else None,
    )


def judge_alone(curves: Curves, policy: OutcomePolicy) -> Outcome:
    """Label a run by its own curve, without a ladder.

    The label is *diverged* as published; *failed* if a spike never came back, or if the final loss
    is above the first by the margin or was never reached; else spiked or healthy. A plateau alone
    is not a failure, since slow runs show it too. Only a ladder can tell that a run is worse than
    another.
    """
    if policy.has_diverged(curves):
        return Outcome.DIVERGED
    spiked, lost = policy.spike(curves)
    if lost or policy.final_loss(curves) > curves.loss[0] + policy.margin:
        return Outcome.FAILED_PLATEAU
    return Outcome.SPIKED if spiked else Outcome.HEALTHY


def without(curves: Curves, undone: Sequence[tuple[int, int]]) -> Curves:
    """Return the curves of the steps that still count, with as many planned steps fewer."""
    keep = np.ones(len(curves.loss), dtype=bool)
    for start, stop in undone:
        keep[start:stop] = False
    return Curves(
        loss=curves.loss[keep],
        grad_norm=curves.grad_norm[keep],
        planned_steps=curves.planned_steps - int((~keep).sum()),
    )
