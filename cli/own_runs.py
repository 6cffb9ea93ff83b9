"""What commands learn from a team's past runs: the option `--runs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rksp.ground.budgets import PAST_RUNS, reading
from rksp.ground.text import one_line

if TYPE_CHECKING:
    from rksp.classifiers.edge_model import EdgeModel, EdgePredictor
    from rksp.documents.own_runs import HistoryReport
    from rksp.models.source import ModelSource
    from rksp.recipe import Recipe


def learned_from(
    paths: Sequence[Path], source: ModelSource, recipe: Recipe, classifier: EdgeModel | None
) -> tuple[EdgePredictor | None, HistoryReport | None]:
    """Return the model that also knows these runs, and what was read; say what is left out.

    Args:
        paths: The values of `--runs`; without any, the classifier is returned as it is.
        source: The target.
        recipe: Its recipe, which fills in what a run does not say.
        classifier: The prior; None stands for the shipped one.

    Raises:
        InputError: A path holds no run that can be read.
    """
    if not paths:
        return classifier, None
    from rksp.assessment.model_choice import choose_model
    from rksp.own_runs.learning import learn

    with reading(f"the runs {one_line(', '.join(map(str, paths)), 200)}", PAST_RUNS):
        model, read = learn(paths, source, recipe, classifier)
    reasons = sorted({ladder.unused for ladder in read.ladders})
    why = read.doubt or ("" if "" in reasons else "; ".join(reasons))
    is_tuned = choose_model(recipe, is_pretrained=source.holds_trained).model == "fine-tuning"
    used = {ladder.starts_trained for ladder in read.ladders if not ladder.unused}
    if not why and is_tuned not in used:
        kinds = ("random", "trained")
        why = (
            f"they start from {kinds[not is_tuned]} weights, the target from {kinds[is_tuned]} ones"
        )
    if why:
        print(f"rksp: nothing is learned from the runs: {one_line(why)}", file=sys.stderr)
    return model, read
