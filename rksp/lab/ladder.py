"""Training one ladder: the starting rates, rates above while nothing fails, then bisection."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rksp.datasets.tasks import Batch, make_task
from rksp.lab.plan import LadderSpec
from rksp.models.zoo import build_member
from rksp.outcome import Curves, Ladder, OutcomePolicy
from rksp.training import train


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRun:
    """A trained ladder: rates ascending, their curves, and the seconds each took."""

    spec: LadderSpec
    rates: tuple[float, ...]
    curves: tuple[Curves, ...]
    seconds: tuple[float, ...]

    def judge(self, policy: OutcomePolicy | None = None) -> Ladder:
        return (policy or OutcomePolicy()).judge(self.rates, self.curves)


def run_ladder(
    spec: LadderSpec,
    *,
    policy: OutcomePolicy | None = None,
    resolution: float = 1.5,
    max_extensions: int = 2,
) -> LadderRun:
    """Trains every run of a ladder, on one thread's worth of this process.

    Args:
        policy: Labels the runs while the ladder grows; the stored curves do not depend on it
            beyond the choice of refining rates.
        resolution: The edge is bisected (geometrically) until its two rates are within this factor.
        max_extensions: Rates added above the highest while nothing fails.
    """
    policy = policy or OutcomePolicy()
    task = make_task(spec.task, **spec.task_options)
    batches = task.batches(spec.recipe.max_steps, spec.recipe.batch_size, seed=spec.seed)
    done: dict[float, tuple[Curves, float]] = {}
    for rate in spec.rates:
        done[rate] = _timed_run(spec, rate, batches)
    while True:
        rates = sorted(done)
        edge = policy.judge(rates, [done[rate][0] for rate in rates]).edge
        if edge is None:
            break
        last, failed = edge
        if failed is None:
            if len(rates) >= spec.count + max_extensions:
                break
            rate = _rounded(rates[-1] * 10**spec.step)
        elif failed / last > resolution:
            rate = _rounded(math.sqrt(last * failed))
        else:
            break
        done[rate] = _timed_run(spec, rate, batches)
    return LadderRun(
        spec=spec,
        rates=tuple(rates),
        curves=tuple(done[rate][0] for rate in rates),
        seconds=tuple(done[rate][1] for rate in rates),
    )


def run_once(spec: LadderSpec, rate: float, batches: list[Batch]) -> Curves:
    """One run of a ladder: the same initialization and batches at every rate."""
    recipe = spec.recipe.model_copy(update={"learning_rate": rate})
    return train(build_member(spec.family, spec.shape, seed=spec.seed), batches, recipe)


def _timed_run(spec: LadderSpec, rate: float, batches: list[Batch]) -> tuple[Curves, float]:
    start = time.perf_counter()
    return run_once(spec, rate, batches), time.perf_counter() - start


def _rounded(rate: float) -> float:
    return float(f"{rate:.6g}")
