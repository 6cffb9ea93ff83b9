"""What a record keeps of a trained run, from which `--runs` learns later."""

from __future__ import annotations

import math
from dataclasses import replace

from rksp.confirm.arms import Arm
from rksp.confirm.trainee import Trainee
from rksp.documents.confirm import TrialReport
from rksp.outcome import Outcome
from rksp.own_runs.labels import Ended
from rksp.own_runs.record import Row, Shape, row_of, shape_of


def trial_row(
    trainee: Trainee, arm: Arm, trial: TrialReport, shape: Shape | None = None, **more: object
) -> Row:
    """Return the record of a run without interventions: with one it is none of its recipe.

    Args:
        trainee: The model and the recipe that the arm changes.
        arm: What the run changed.
        trial: What it left behind.
        shape: Of the model; default what its configuration declares.
        **more: Further columns.
    """
    trained, source = arm.recipe(trainee.recipe), trainee.source
    judged = trial.final_loss if trial.untrained_loss is None else trial.held_out_loss
    final = math.nan if judged is None else judged
    state: Ended = "diverged" if trial.outcome == Outcome.DIVERGED else "finished"
    declared = shape_of(source.config, source.task, trained, is_trained=source.holds_trained)
    known = shape or declared
    if known is not None and (entropy := trainee.entropy) is not None:
        known = replace(known, entropy=entropy)
    name = f"{source.target} {arm.label} seed {trial.seed}"
    return row_of(name, trained, known, final_loss=final, state=state, seed=trial.seed, **more)
