"""Trials on the controlled models, run in processes and resumable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lab.experiments.readings import read_readings, write_readings
from lab.ladders.run import Progress, work_through
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.confirm.arms import parse_arm
from rksp.confirm.trial import alarm_rules, seen, sum_up, train_arm
from rksp.documents.confirm import TrialReport
from rksp.ground.files import ResultFolder, digest
from rksp.ground.model import Strict
from rksp.recipe import Recipe
from rksp.watch.monitors.rules import replay
from rksp.watch.registry import MONITORS
from rksp.watch.training.loop import RunRecord

_READINGS = ".readings.gz"
# Monitors whose default cadence is sparser read every 5 steps: at 100 they would have a sample or
# two before a fault. Not the defaults: a trial must not change with them.
_EVERY = {"loss": 1, "gradient-norm": 1, "output-change": 1, "non-finite": 1, "update-rms": 4}
DENSE = tuple(f"{name}:every={_EVERY.get(name, 5)}" for name in MONITORS)


class Trial(Strict):
    """Everything that one trial depends on.

    `fault_step` is the step from which on an alarm counts as having seen the fault. `case` names
    the failure that it replays, or whose healthy twin it is.
    """

    family: str
    shape: dict[str, bool | int | float | str | None]
    task: str
    task_options: dict[str, int | str] = {}
    recipe: Recipe
    seed: int
    arm: str = "baseline"
    faults: tuple[str, ...] = ()
    monitors: tuple[str, ...] = ()
    fault_step: int = 0
    case: str = ""
    is_twin: bool = False

    @property
    def id(self) -> str:
        """The hash of the content, under which the result is stored."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return digest(text)


def small_trial(
    family: str,
    task: str,
    *,
    width: int,
    depth: int,
    length: int,
    batch: int,
    rate: float,
    warmup: int = 100,
    clip: float | None = None,
    steps: int = 300,
    **more: object,
) -> Trial:
    """Return a trial at a constant rate on a model with 4 heads and, by default, 256 tokens."""
    shape = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": length,
    }
    recipe = Recipe(
        learning_rate=rate,
        warmup_steps=warmup,
        max_steps=steps,
        schedule="constant",
        max_grad_norm=clip,
        batch_size=batch,
        sequence_length=length,
    )
    shape |= more.pop("shape", {})
    given = {"family": family, "shape": shape, "task": task}
    return Trial(**given, recipe=recipe, seed=0, **more)


class Stored(Strict):
    """A trial and its result."""

    trial: Trial
    result: TrialReport


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
    """Train the trials that `folder` lacks, a file or two for each, and read all of them back.

    Raises:
        Incomplete: A worker died; stored trials stay, and the same call continues.
    """
    results = ResultFolder(folder)
    results.clean()
    missing = [trial for trial in trials if trial.id not in results]
    if missing:
        work_through(store, missing, folder, total=len(trials), workers=workers, progress=progress)
    return read_trials(trials, folder)


def read_trials(trials: Sequence[Trial], folder: Path) -> list[Stored]:
    """Return the trials of a plan that `folder` holds, in the plan's order.

    Alarms are judged anew from the stored readings, by the current rules.
    """
    results = ResultFolder(folder)
    found = []
    for trial in trials:
        content = results.read(trial.id)
        if content is not None:
            stored = Stored.model_validate_json(content)
            found.append(_judged(stored, results) if trial.monitors else stored)
    return found


def store(trial: Trial, folder: Path) -> None:
    """Train a trial and store its result, and the readings of its monitors beside it."""
    record = _train(trial)
    results = ResultFolder(folder)
    if trial.monitors:
        write_readings(results.path(trial.id, _READINGS), record.readings)
    result = sum_up(record, trial.arm, trial.seed, fault_step=trial.fault_step)
    results.write(trial.id, Stored(trial=trial, result=result).model_dump_json())


def _judged(stored: Stored, results: ResultFolder) -> Stored:
    trial, result = stored.trial, stored.result
    readings = read_readings(results.path(trial.id, _READINGS))
    alarms = replay(readings, alarm_rules(trial.recipe))
    anew = seen(alarms, result.onset, since=trial.fault_step)
    return stored.model_copy(update={"result": result.model_copy(update=anew)})
