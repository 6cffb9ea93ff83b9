"""The record of a confirmation's runs, from which `--runs` learns later."""

from __future__ import annotations

import math
from pathlib import Path

from rksp.confirm.arms import Arm
from rksp.documents.confirm import TrialReport
from rksp.models.source import ModelSource
from rksp.own_runs.outcome import Ended, Outcome
from rksp.own_runs.record import append_row, row_of, shape_of
from rksp.recipe import Recipe


def record_trial(
    path: Path, source: ModelSource, recipe: Recipe, arm: Arm, trial: TrialReport
) -> None:
    """Append a run to a file of runs; one with interventions is none of its recipe, and left out.

    Args:
        path: The file; created if absent.
        source: The model.
        recipe: The baseline's, as trained.
        arm: What the run changed.
        trial: What it left behind.

    Raises:
        InputError: The file cannot be written.
    """
    if arm.interventions:
        return
    trained = arm.recipe(recipe)
    judged = trial.final_loss if trial.untrained_loss is None else trial.held_out_loss
    final = math.nan if judged is None else judged
    state: Ended = "diverged" if trial.outcome == Outcome.DIVERGED else "finished"
    shape = shape_of(source.config, source.task, trained, is_trained=source.holds_trained)
    name = f"{source.target} {arm.label} seed {trial.seed}"
    append_row(path, row_of(name, trained, shape, final_loss=final, state=state, seed=trial.seed))
