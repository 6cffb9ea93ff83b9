"""Train a ladder of fine-tuning, and judge every run on new and on old data."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from torch import nn

from lab.ladders.fine_tuning.base_model import BaseModels, BaseReport, judging_batches
from lab.ladders.fine_tuning.measured import measure_start
from lab.ladders.fine_tuning.model import OldAbility, load_base, model_to_tune
from lab.ladders.fine_tuning.spec import FineTuningSpec
from lab.ladders.ladder import POLICY, run_ladder
from rksp.datasets.batch import Batch, mean_loss
from rksp.own_runs.outcome import Curves, Ladder
from rksp.watch.training import train


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Mean loss, in nats, on held-out data of the new task and of the base model's own."""

    new: float
    old: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTunedLadder:
    """A trained ladder of fine-tuning.

    Attributes:
        spec: What was trained.
        base: What the base model had learned.
        trained_parameters: Number of parameters with a gradient.
        before: Held-out losses before the first step.
        measured: What `measure_start` saw before the first step.
        rates: Ascending.
        curves: Training curves by rate.
        after: Held-out losses by rate.
        seconds: Processor seconds by rate.
    """

    spec: FineTuningSpec
    base: BaseReport
    trained_parameters: int
    before: HeldOut
    measured: dict[str, float | None]
    rates: tuple[float, ...]
    curves: tuple[Curves, ...]
    after: tuple[HeldOut, ...]
    seconds: tuple[float, ...]

    def judge(self) -> Ladder:
        """Label the runs by their training curves."""
        return POLICY.judge(self.rates, self.curves)


def run_fine_tuning(
    spec: FineTuningSpec, bases: BaseModels, *, max_extensions: int = 2
) -> FineTunedLadder:
    """Train every run of a ladder; higher rates are added while nothing fails.

    Args:
        spec: The ladder.
        bases: Where base models are kept; the ladder's is trained if it is missing.
        max_extensions: Number of rates added above the highest.

    Returns:
        The ladder.
    """
    home, report = bases.get(spec.base)
    start = model_to_tune(spec, home)
    old = OldAbility(load_base(home), spec.fresh_head)
    judge = _Judge(
        judging_batches(spec.new_task("held_out")),
        judging_batches(spec.base.old_task("held_out")),
        old,
    )
    batches = spec.new_task("training").batches(
        spec.recipe.max_steps, spec.recipe.batch_size, seed=spec.seed
    )
    before = judge(start)
    measured = measure_start(start, spec)
    after: dict[float, HeldOut] = {}

    def train_run(rate: float) -> Curves:
        model = copy.deepcopy(start)
        recipe = spec.recipe.model_copy(update={"learning_rate": rate})
        curves = train(model, batches, recipe)
        after[rate] = judge(model)
        return curves

    ladder = run_ladder(spec, train_run, resolution=math.inf, max_extensions=max_extensions)
    return FineTunedLadder(
        spec=spec,
        base=report,
        trained_parameters=sum(p.numel() for p in start.parameters() if p.requires_grad),
        before=before,
        measured=measured,
        rates=ladder.rates,
        curves=ladder.curves,
        after=tuple(after[rate] for rate in ladder.rates),
        seconds=ladder.seconds,
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    new: list[Batch]
    old: list[Batch]
    ability: OldAbility

    def __call__(self, model: nn.Module) -> HeldOut:
        return HeldOut(new=mean_loss(model, self.new), old=mean_loss(self.ability(model), self.old))
