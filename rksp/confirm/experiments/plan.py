"""Plans of trials on the controlled models, run in processes and resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rksp.confirm.arms import parse_arm
from rksp.confirm.trial import TrialReport, sum_up, train_arm
from rksp.datasets.tasks import make_task
from rksp.lab.run import Progress, work_through
from rksp.models.zoo import build_member
from rksp.recipe import Recipe


class Trial(BaseModel):
    """Everything that one trial depends on.

    `fault_step` is the step from which on an alarm counts as having seen the fault.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    shape: dict[str, bool | int | float | str | None]
    task: str
    task_options: dict[str, int] = {}
    recipe: Recipe
    seed: int
    arm: str = "baseline"
    faults: tuple[str, ...] = ()
    monitors: tuple[str, ...] = ()
    fault_step: int = 0

    @property
    def id(self) -> str:
        """Hash of the content: the name under which the result is stored."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Stored(BaseModel):
    """A trial and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: Trial
    result: TrialReport


def run_trial(trial: Trial) -> TrialReport:
    """Trains one trial; arms of the same seed share initialization and batches."""
    recipe = trial.recipe
    task = make_task(trial.task, **trial.task_options)
    batches = task.batches(
        recipe.max_steps * recipe.gradient_accumulation_steps, recipe.batch_size, seed=trial.seed
    )
    record = train_arm(
        build_member(trial.family, trial.shape, seed=trial.seed),
        batches,
        recipe,
        parse_arm(trial.arm),
        seed=trial.seed,
        faults=trial.faults,
        monitors=trial.monitors,
    )
    return sum_up(record, trial.arm, trial.seed, fault_step=trial.fault_step)


def run_trials(
    trials: Sequence[Trial],
    folder: Path,
    *,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Stored]:
    """Trains what `folder` does not hold yet, one file a trial, and reads everything back.

    Raises:
        Incomplete: A worker died; what is stored stays, and the same call continues.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [trial for trial in trials if not _path(trial, folder).exists()]
    if missing:
        work_through(_store, missing, folder, total=len(trials), workers=workers, progress=progress)
    return [
        Stored.model_validate_json(_path(trial, folder).read_text(encoding="utf-8"))
        for trial in trials
    ]


def _path(trial: Trial, folder: Path) -> Path:
    return folder / f"{trial.id}.json"


def _store(trial: Trial, folder: Path) -> None:
    stored = Stored(trial=trial, result=run_trial(trial))
    partial = folder / f"{trial.id}.partial"
    partial.write_text(stored.model_dump_json(), encoding="utf-8")
    partial.replace(_path(trial, folder))
