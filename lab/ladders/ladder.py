"""Train ladders: the starting rates, higher rates while nothing fails, then bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.ladders.plan import LadderSpec
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.own_runs.outcome import Curves, Ladder, OutcomePolicy
from rksp.watch.interventions.base import Intervention
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_intervention, make_monitors
from rksp.watch.training import run, train, without

_HEARD = ("loss", "gradient-norm", "non-finite")  # the monitors whose alarms interventions hear

POLICY = OutcomePolicy()  # labels the lab's runs, also while a ladder grows


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRun:
    """A trained ladder: ascending rates, their curves, and the processor seconds of each."""

    spec: LadderSpec
    rates: tuple[float, ...]
    curves: tuple[Curves, ...]
    seconds: tuple[float, ...]

    def judge(self) -> Ladder:
        """Label the runs."""
        return POLICY.judge(self.rates, self.curves)


def run_ladder(
    spec: Any,
    train_run: Callable[[float], Curves] | None = None,
    *,
    resolution: float = 1.5,
    max_extensions: int = 2,
) -> LadderRun:
    """Train every run of one ladder, one after the other.

    Args:
        spec: The ladder, of either design.
        train_run: Trains one run at a rate; default `run_once`.
        resolution: The edge is bisected (geometrically) until its rates are within this factor.
        max_extensions: Number of rates added above the highest while nothing fails.

    Returns:
        The trained ladder.
    """
    train_run = train_run or partial(run_once, spec, batches=ladder_batches(spec))
    done: dict[float, tuple[Curves, float]] = {}
    while rates := _next_rates(spec, done, resolution, max_extensions):
        for rate in rates:
            start = time.process_time()  # the wall's clock would show what else the machine does
            done[rate] = train_run(rate), time.process_time() - start
    rates = sorted(done)
    curves, seconds = zip(*(done[rate] for rate in rates), strict=True)
    return LadderRun(spec=spec, rates=tuple(rates), curves=curves, seconds=seconds)


def _next_rates(
    spec: Any,
    done: Mapping[float, tuple[Curves, float]],
    resolution: float,
    max_extensions: int,
) -> list[float]:
    """Return the rates to train next; none if the ladder is complete."""
    if not done:
        return spec.rates
    rates = sorted(done)
    edge = POLICY.judge(rates, [done[rate][0] for rate in rates]).edge
    if edge is None:
        return []
    last, failed = edge
    if failed is None:
        is_complete = len(rates) >= spec.count + max_extensions
        return [] if is_complete else [_rounded(rates[-1] * 10**spec.step)]
    return [_rounded(math.sqrt(last * failed))] if failed / last > resolution else []


def ladder_batches(spec: LadderSpec) -> list[Batch]:
    """Return the batches that every run of a ladder sees."""
    task = make_task(spec.task, **spec.task_options)
    return task.batches(spec.recipe.max_steps, spec.recipe.batch_size, seed=spec.seed)


def run_once(spec: LadderSpec, rate: float, batches: list[Batch]) -> Curves:
    """Train one run of a ladder; every rate has the same initialization and batches.

    Steps that an intervention undid are not in the curves.
    """
    recipe = spec.recipe.model_copy(update={"learning_rate": rate})
    model = build_member(spec.family, spec.shape, seed=spec.seed)
    if not spec.interventions:
        return train(model, batches, recipe)
    acting = [make_intervention(line) for line in spec.interventions]
    hears = any(type(i).on_alarm is not Intervention.on_alarm for i in acting)
    monitors = make_monitors(_HEARD) if hears else []
    watch = Watch(monitors, Rules(warmup_steps=recipe.warmup_steps))
    record = run(model, batches, recipe, watch=watch, interventions=acting, seed=spec.seed)
    return without(record.curves, record.undone)


def _rounded(rate: float) -> float:
    return float(f"{rate:.6g}")
