"""From paths of past runs to a model that knows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rksp.classifiers.edge_model import EdgeModel, load_edge_model
from rksp.documents.own_runs import HistoryReport
from rksp.models.declared import Declared
from rksp.models.source import ModelSource
from rksp.own_runs.history import Question, read_history
from rksp.own_runs.informed import InformedModel
from rksp.own_runs.scorecard import history_report
from rksp.recipe import Recipe


def learn(
    paths: Sequence[Path],
    source: ModelSource,
    recipe: Recipe,
    prior: EdgeModel | None = None,
) -> tuple[InformedModel, HistoryReport]:
    """Return the model that has also seen the runs under these paths.

    Runs from random weights inform the model of the edge, those from trained weights its `tuning`.

    Args:
        paths: Files and folders; see `rksp.own_runs.registry`.
        source: The model that is asked about, which a run that names none is of.
        recipe: Fills in what a run does not say.
        prior: Default the shipped model.

    Returns:
        The model, and what was read.

    Raises:
        InputError: A path holds no run that can be read.
    """
    prior = prior or load_edge_model()
    history = read_history(paths, Question(source=source, recipe=recipe))
    family = Declared(source.config, source.task).name
    return (
        InformedModel(prior=prior, family=family, seen=history.seen, tuned=history.tuned),
        history_report(history, prior),
    )
