"""Single steps of an intervention, without the loop of a run."""

from __future__ import annotations

import torch
from torch import nn

from lab.tasks.tasks import associative_recall
from rksp.datasets.batch import task_loss
from rksp.recipe import Recipe
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm, Severity

RECIPE = Recipe(learning_rate=1e-2, schedule="constant", max_steps=50, max_grad_norm=None)


def few_batches(count: int, seed: int = 1):
    return associative_recall(length=32, vocab=64).batches(count, 4, seed=seed)


def alarm_at(step: int, severity: Severity = Severity.CRITICAL) -> Alarm:
    return Alarm(
        monitor="test",
        quantity="loss",
        layer="",
        step=step,
        severity=severity,
        rule="by hand",
        value=1.0,
        baseline=None,
    )


def take_step(model, optimizer, intervention: Intervention, step: int, batch) -> Moment:
    """One step of the contract's life, without an alarm."""
    moment = Moment(step=step, model=model, optimizer=optimizer)
    hooks = intervention.arm(moment)
    loss = task_loss(model, batch)
    extra = intervention.penalty(moment)
    (loss if extra is None else loss + extra).backward()
    for hook in hooks:
        hook.remove()
    moment.loss = loss.item()
    intervention.before_update(moment)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    intervention.after_update(moment)
    return moment


class TwoParameters(nn.Module):
    """Two parameters whose gradients the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros(4, dtype=torch.float64))
