"""Profiles of models that learn, from initialization to the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lab.experiments.tables import markdown
from lab.experiments.trials import Stored, Trial, small_trial
from lab.tasks.tasks import make_task
from rksp.documents.confirm import PROFILED, Curve
from rksp.ground.model import Strict
from rksp.own_runs.outcome import OutcomePolicy

_NONE = "–"
_SHOWN = 5  # steps of a run in the table


class ProfileRow(Strict):
    """The profile of one run in a committed result.

    Attributes:
        family, rate, seed: Which run.
        final_loss: Mean over the last tenth, in nats; None if the run stopped before.
        loss: Training loss at the steps of the profiles, in nats.
        profiles: Quantity → (step, value); see `rksp.confirm.trial.profile_curves`.
    """

    family: str
    rate: float
    seed: int
    final_loss: float | None
    loss: Curve
    profiles: dict[str, Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """An experiment as those of the catalog: profiles of some settings at some seeds.

    Attributes:
        settings: The trials to train, without their seeds.
        seeds: One run of every setting for each seed.
    """

    settings: Sequence[Trial]
    seeds: Sequence[int]
    row_type = ProfileRow

    def plan(self) -> list[Trial]:
        """Return all trials, those at one seed before the next seed."""
        return [t.model_copy(update={"seed": s}) for s in self.seeds for t in self.settings]

    @staticmethod
    def rows(stored: Sequence[Stored]) -> list[ProfileRow]:
        """Return the rows of stored trials."""
        return [_row(one) for one in stored]

    def table(self, rows: Sequence[ProfileRow]) -> str:
        """Return the profiles as Markdown, means over the seeds, and the loss of a trivial answer.

        A profile counts only if its runs learned: the share of runs that ended below the trivial
        answer by the margin of the ladders' policy stands in the table.
        """
        setting = self.settings[0]
        trivial = make_task(setting.task, **setting.task_options).trivial_loss
        families = dict.fromkeys(row.family for row in rows)
        cells = [cell for family in families for cell in _cells(family, rows, trivial)]
        header = ("model", "learned", "step", "loss", "M≈1", "stable rank", "QK rank")
        chance = f"Answering with the label frequencies costs {trivial:.3f} nats.\n"
        return markdown(header, cells, texts=1) + "\n" + chance


def _row(stored: Stored) -> ProfileRow:
    trial, result = stored.trial, stored.result
    read = sorted({step for curve in result.profiles.values() for step, _ in curve})
    known = {step: value for step, value in result.loss if value is not None}
    # The curve has at most 200 points, so the nearest one may be of the step before or after.
    near = {step: min(known, key=lambda at: abs(at - step)) for step in read if known}
    return ProfileRow(
        family=trial.family,
        rate=trial.recipe.learning_rate,
        seed=trial.seed,
        final_loss=result.final_loss,
        loss=[(step, known[at]) for step, at in near.items()],
        profiles=result.profiles,
    )


def _cells(family: str, rows: Sequence[ProfileRow], trivial: float) -> list[tuple[str, ...]]:
    own = [row for row in rows if row.family == family]
    bar = trivial - OutcomePolicy().margin
    learned = sum(row.final_loss is not None and row.final_loss <= bar for row in own)
    steps = sorted({step for row in own for curve in row.profiles.values() for step, _ in curve})
    chosen = sorted({steps[round(i * (len(steps) - 1) / (_SHOWN - 1))] for i in range(_SHOWN)})
    return [
        (
            family.removeprefix("zoo_") if step == chosen[0] else "",
            f"{learned}/{len(own)}" if step == chosen[0] else "",
            f"{step}",
            _mean([row.loss for row in own], step),
            *(_mean([row.profiles.get(name, []) for row in own], step) for name in PROFILED),
        )
        for step in chosen
    ]


def _mean(curves: Sequence[Curve], step: int) -> str:
    """Return the mean over the runs that have a value at this step."""
    values = [value for curve in curves for at, value in curve if at == step]
    return f"{statistics.fmean(values):.2f}" if values else _NONE


def _watched(every: int) -> tuple[str, ...]:
    return (
        f"near-unit-mass:every={every},states=2048",
        f"stable-rank:every={every}",
        f"qk-entropy:every={every},windows={every}",
    )


def _small(family: str) -> Trial:
    return small_trial(
        *(family, "bytes"), width=32, depth=4, length=32, batch=16, rate=3e-3, warmup=30,
        clip=1.0, steps=301, task_options={"length": 32}, monitors=_watched(30),
    )  # fmt: skip


PROFILES = Profiles(
    settings=[_small(f"zoo_{name}") for name in ("pre_ln", "post_ln", "no_norm")], seeds=range(3)
)
