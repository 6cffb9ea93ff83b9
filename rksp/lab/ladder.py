"""Train ladders: the starting rates, higher rates while nothing fails, then bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rksp.batch import Batch
from rksp.datasets.tasks import make_task
from rksp.lab.plan import LadderSpec
from rksp.models.zoo import build_member
from rksp.outcome import Curves, Ladder, OutcomePolicy
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.registry import make_intervention
from rksp.watch.monitors.registry import make_monitors
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import run, train, without

_HEARD = ("loss", "gradient-norm", "non-finite")  # the monitors whose alarms interventions hear
Pair = tuple[LadderSpec, float]  # one run: a ladder and a rate
Timed = tuple[Curves, float]  # the curves of a run, and the seconds (of the processor) it took
TrainRuns = Callable[[Sequence[Pair]], list[Timed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRun:
    """A trained ladder: ascending rates, their curves, and the seconds of each run."""

    spec: LadderSpec
    rates: tuple[float, ...]
    curves: tuple[Curves, ...]
    seconds: tuple[float, ...]

    def judge(self, policy: OutcomePolicy | None = None) -> Ladder:
        """Label the runs by a policy."""
        return (policy or OutcomePolicy()).judge(self.rates, self.curves)


def run_ladder(
    spec: LadderSpec,
    *,
    policy: OutcomePolicy | None = None,
    resolution: float = 1.5,
    max_extensions: int = 2,
) -> LadderRun:
    """Train every run of one ladder, one after the other; see `run_ladders`."""
    (ladder,) = run_ladders(
        [spec], policy=policy, resolution=resolution, max_extensions=max_extensions
    )
    return ladder


def run_ladders(
    specs: Sequence[Any],
    train_runs: TrainRuns | None = None,
    *,
    policy: OutcomePolicy | None = None,
    resolution: float = 1.5,
    max_extensions: int = 2,
) -> list[LadderRun]:
    """Train ladders side by side; in every round each ladder asks for the rates it needs next.

    Args:
        specs: The ladders to train.
        train_runs: Trains the runs of a round; default one after the other on this thread.
        policy: Labels the runs while the ladders grow; it influences the stored curves only
            through the choice of refining rates.
        resolution: The edge is bisected (geometrically) until its rates are within this factor.
        max_extensions: Number of rates added above the highest while nothing fails.

    Returns:
        The trained ladders.
    """
    train_runs = train_runs or train_alone
    policy = policy or OutcomePolicy()
    growing = [_Growing(spec) for spec in specs]
    while wanted := [
        (ladder, rate)
        for ladder in growing
        for rate in ladder.next_rates(policy, resolution, max_extensions)
    ]:
        results = train_runs([(ladder.spec, rate) for ladder, rate in wanted])
        for (ladder, rate), timed in zip(wanted, results, strict=True):
            ladder.done[rate] = timed
    return [ladder.finished() for ladder in growing]


@dataclass(slots=True)
class _Growing:
    """A ladder in progress: the finished runs, and the rates it needs next."""

    spec: LadderSpec
    done: dict[float, Timed] = field(default_factory=dict)

    def next_rates(
        self, policy: OutcomePolicy, resolution: float, max_extensions: int
    ) -> list[float]:
        """Return the rates to train next; none if the ladder is complete."""
        if not self.done:
            return self.spec.rates
        rates = sorted(self.done)
        edge = policy.judge(rates, [self.done[rate][0] for rate in rates]).edge
        if edge is None:
            return []
        last, failed = edge
        if failed is None:
            if len(rates) >= self.spec.count + max_extensions:
                return []
            return [_rounded(rates[-1] * 10**self.spec.step)]
        return [_rounded(math.sqrt(last * failed))] if failed / last > resolution else []

    def finished(self) -> LadderRun:
        """Return the trained ladder."""
        rates = sorted(self.done)
        return LadderRun(
            spec=self.spec,
            rates=tuple(rates),
            curves=tuple(self.done[rate][0] for rate in rates),
            seconds=tuple(self.done[rate][1] for rate in rates),
        )


def train_alone(pairs: Sequence[Pair]) -> list[Timed]:
    """Train one run after the other; the batches of a ladder are made once."""
    batches: dict[str, list[Batch]] = {}
    results = []
    for spec, rate in pairs:
        if spec.id not in batches:
            batches[spec.id] = ladder_batches(spec)
        start = time.process_time()  # the wall's clock would show what else the machine does
        curves = run_once(spec, rate, batches[spec.id])
        results.append((curves, time.process_time() - start))
    return results


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
