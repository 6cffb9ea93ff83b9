"""Plans of trials on the controlled models, run in processes and resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from rksp.confirm.arms import parse_arm
from rksp.confirm.experiments.series import read_readings, write_readings
from rksp.confirm.trial import alarm_rules, seen, sum_up, train_arm
from rksp.datasets.tasks import make_task
from rksp.documents.confirm import TrialReport
from rksp.lab.run import Progress, work_through
from rksp.models.zoo import build_member
from rksp.monitors.rules import replay
from rksp.recipe import Recipe
from rksp.training.runner import RunRecord


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
    return _sum_up(trial, _train(trial))


def _sum_up(trial: Trial, record: RunRecord) -> TrialReport:
    return sum_up(record, trial.arm, trial.seed, fault_step=trial.fault_step)


def _train(trial: Trial) -> RunRecord:
    recipe = trial.recipe
    task = make_task(trial.task, **trial.task_options)
    batches = task.batches(
        recipe.max_steps * recipe.gradient_accumulation_steps, recipe.batch_size, seed=trial.seed
    )
    return train_arm(
        build_member(trial.family, trial.shape, seed=trial.seed),
        batches,
        recipe,
        parse_arm(trial.arm),
        seed=trial.seed,
        faults=trial.faults,
        monitors=trial.monitors,
    )


def run_trials(
    trials: Sequence[Trial],
    folder: Path,
    *,
    workers: int | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Stored]:
    """Trains what `folder` does not hold yet, a file or two a trial, and reads everything back.

    Raises:
        Incomplete: A worker died; what is stored stays, and the same call continues.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [trial for trial in trials if not _path(trial, folder).exists()]
    if missing:
        work_through(_store, missing, folder, total=len(trials), workers=workers, progress=progress)
    return read_trials(trials, folder)


def read_trials(trials: Sequence[Trial], folder: Path) -> list[Stored]:
    """What `folder` holds of a plan, in its order.

    Alarms are judged anew from the stored readings, by the rules of today.
    """
    found = []
    for trial in trials:
        path = _path(trial, folder)
        if path.exists():
            stored = Stored.model_validate_json(path.read_text(encoding="utf-8"))
            found.append(_judged(stored, folder) if trial.monitors else stored)
    return found


def _judged(stored: Stored, folder: Path) -> Stored:
    trial, result = stored.trial, stored.result
    alarms = replay(read_readings(_readings_path(trial, folder)), alarm_rules(trial.recipe))
    anew = seen(alarms, result.onset, since=trial.fault_step)
    return stored.model_copy(update={"result": result.model_copy(update=anew)})


def _path(trial: Trial, folder: Path) -> Path:
    return folder / f"{trial.id}.json"


def _readings_path(trial: Trial, folder: Path) -> Path:
    return folder / f"{trial.id}.readings.gz"


def _store(trial: Trial, folder: Path) -> None:
    record = _train(trial)
    if trial.monitors:
        write_readings(_readings_path(trial, folder), record.readings)
    stored = Stored(trial=trial, result=_sum_up(trial, record))
    partial = folder / f"{trial.id}.partial"
    partial.write_text(stored.model_dump_json(), encoding="utf-8")
    partial.replace(_path(trial, folder))
