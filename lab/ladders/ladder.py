"""Train ladders: the starting rates, higher rates while nothing fails, then bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

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

_RESOLUTION = 1.5  # the factor within which the rates beside an edge are, once it is bisected
_MOST_HIGHER = 2  # rates that are added above the highest while nothing fails
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


def run_ladder(spec: LadderSpec) -> LadderRun:
    """Train every run of one ladder, one after the other."""
    batches = ladder_batches(spec)
    done: dict[float, tuple[Curves, float]] = {}
    while rates := _next_rates(spec, {rate: curves for rate, (curves, _) in done.items()}):
        for rate in rates:
            start = time.process_time()  # the wall's clock would show what else the machine does
            done[rate] = run_once(spec, rate, batches), time.process_time() - start
    rates = sorted(done)
    curves, seconds = zip(*(done[rate] for rate in rates), strict=True)
    return LadderRun(spec=spec, rates=tuple(rates), curves=curves, seconds=seconds)


def _next_rates(spec: LadderSpec, done: Mapping[float, Curves]) -> list[float]:
    """Return the rates to train next; none if the ladder is complete."""
    if not done:
        return spec.rates
    rates = sorted(done)
    edge = POLICY.judge(rates, [done[rate] for rate in rates]).edge
    if edge is None:
        return []
    last, failed = edge
    if failed is None:
        is_complete = len(rates) >= spec.count + _MOST_HIGHER
        return [] if is_complete else [_rounded(rates[-1] * 10**spec.step)]
    return [_rounded(math.sqrt(last * failed))] if failed / last > _RESOLUTION else []


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
