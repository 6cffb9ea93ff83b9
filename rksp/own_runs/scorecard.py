"""From paths of past runs to a model that knows them, and what the shipped one said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rksp.assessment.fine_tuning import beyond_tuning
from rksp.assessment.risk import beyond as beyond_edge
from rksp.classifiers.edge_model import EdgeModel, EdgePredictor, load_edge_model
from rksp.classifiers.metrics import auroc, ece
from rksp.documents.own_runs import HistoryReport, PastLadderReport, PastRunReport, ScorecardReport
from rksp.documents.terms import DEFAULT_RISK
from rksp.ground.text import short
from rksp.models.declared import Declared
from rksp.models.source import ModelSource
from rksp.own_runs.history import History, PastLadder, read_history
from rksp.own_runs.informed import Estimate, InformedModel
from rksp.own_runs.observed import LabelledRuns, Observed, Tuned
from rksp.own_runs.outcome import Judged
from rksp.recipe import Recipe
from rksp.recipe.coverage import uncovered, untuned

_SURPRISING = 3.0  # spreads beyond which a ladder contradicts what is known of others
_MOST_COMPARED = 60  # ladders; each is compared with all others
_BINS = 10


def learn(
    paths: Sequence[Path], source: ModelSource, recipe: Recipe
) -> tuple[InformedModel, HistoryReport]:
    """Return the model that has also seen the runs under these paths.

    Runs from random weights inform the model of the edge, those from trained weights its `tuning`.

    Args:
        paths: Files and folders; see `rksp.own_runs.registry`.
        source: The model that is asked about, which a run that names none is of.
        recipe: Fills in what a run does not say.

    Raises:
        InputError: A path holds no run that can be read.
    """
    prior, history = load_edge_model(), read_history(paths, source, recipe)
    family = Declared(source.config, source.task).name
    seen, tuned = history.used(Observed), history.used(Tuned)
    model = InformedModel(prior=prior, family=family, seen=seen, tuned=tuned)
    return model, history_report(history, prior)


def history_report(history: History, model: EdgeModel | None = None) -> HistoryReport:
    """Return every run with its label, what the model says of it, and what contradicts what.

    The model is the shipped one where none is given.
    """
    model = model or load_edge_model()
    others = _said_by_others(history, model)
    return HistoryReport(
        ladders=[
            _ladder_report(ladder, model, others.get(id(ladder.observed)))
            for ladder in history.ladders
        ],
        left_out=list(history.left_out),
        ignored=list(history.ignored),
        doubt=history.doubt,
    )


def scorecard(history: HistoryReport) -> ScorecardReport | None:
    """Return how well the model would have predicted the runs; None if none can be judged."""
    runs = [
        (run.said, Judged(label=run.label).failed)
        for ladder in history.ladders
        for run in ladder.runs
        if run.said is not None
    ]
    known = np.array([(said, failed) for said, failed in runs if math.isfinite(failed)])
    if not len(known):
        return None
    said, failed = known.T
    edged = [one for one in history.ladders if one.edge_error is not None]
    best = [
        abs(math.log10(one.best_said / one.best_rate))
        for one in history.ladders
        if one.best_said and one.best_rate and len({run.learning_rate for run in one.runs}) > 1
    ]
    inside = [bool(one.is_inside) for one in edged]
    return ScorecardReport(
        runs=len(said),
        failed=int(failed.sum()),
        auroc=_finite(auroc(failed, said)),
        said=float(said.mean()),
        ece=ece(failed, said, bins=_BINS) if len(said) >= 2 * _BINS else None,
        ladders=len(edged),
        edge_error=_median([one.edge_error for one in edged]),
        best_error=_median(best),
        covered=float(np.mean(inside)) if inside else None,
        edge_error_with_others=_median([one.edge_error_with_others for one in edged]),
    )


def _said_by_others(history: History, model: EdgeModel) -> dict[int, Estimate]:
    """Return, for each ladder that shows its edge, what all others of its kind make of it.

    There is none where too many would be compared.
    """
    found: dict[int, Estimate] = {}
    for kind in (history.used(Observed), history.used(Tuned)):
        edged = [one for one in kind if one.is_ladder and one.shows_edge]
        for one in edged if 2 <= len(edged) <= _MOST_COMPARED else ():
            rest = [other for other in kind if other is not one]
            seen = [other for other in rest if isinstance(other, Observed)]
            tuned = [other for other in rest if isinstance(other, Tuned)]
            family = "" if isinstance(one, Tuned) else one.family
            informed = InformedModel(prior=model, family=family, seen=seen, tuned=tuned)
            found[id(one)] = _said(one, informed)
    return found


def _said(one: Observed | Tuned, model: EdgePredictor) -> Estimate:
    if isinstance(one, Tuned):
        return model.tuning.predict(one.inputs)
    return model.predict(one.inputs)


def _untold(ladder: PastLadder, model: EdgeModel) -> str:
    seen, recipe = ladder.observed, ladder.recipe
    if seen is None:
        return ""
    if isinstance(seen, Tuned):
        beyond = beyond_tuning(model.tuning.predict(seen.inputs), seen.inputs)
        reasons = [*untuned(recipe), *beyond]
    else:
        reasons = [*uncovered(recipe), *beyond_edge(model.predict(seen.inputs), seen.inputs)]
    return reasons[0] if reasons else ""


def _ladder_report(
    ladder: PastLadder, model: EdgeModel, others: Estimate | None
) -> PastLadderReport:
    seen = ladder.observed
    untold = _untold(ladder, model)
    say = None if seen is None or untold else _said(seen, model)
    error, helped, is_inside = None, None, None
    if seen is not None and say is not None and all(map(math.isfinite, seen.bracket)):
        error, is_inside = _edge_error(seen, say), _is_inside(seen, say)
        helped = None if others is None else _edge_error(seen, others)
    assumed = [
        name
        for name in Recipe.model_fields
        if name != "learning_rate" and name not in ladder.said and name in _TOLD
    ]
    return PastLadderReport(
        name=ladder.name,
        runs=[
            PastRunReport(
                name=run.raw.name,
                file=str(run.raw.file),
                learning_rate=run.rate,
                final_loss=_finite(run.final),
                label=label.label,
                excess=_finite(label.excess),
                said=None if say is None else say.failed(run.rate),
            )
            for run, label in zip(ladder.runs, ladder.labels, strict=True)
        ],
        assumed=assumed,
        edge=(None, None) if seen is None else (_rate(seen.bracket[0]), _rate(seen.bracket[1])),
        best_rate=None if seen is None else _rate(seen.log_best),
        likely_edge=None if say is None else say.likely_edge,
        best_said=None if say is None else 10**say.log_best,
        exceed_said=None if say is None else say.rate_at(DEFAULT_RISK),
        edge_error=error,
        edge_error_with_others=helped,
        is_inside=is_inside,
        unused=ladder.unused,
        surprise="" if seen is None or say is None else _surprise(seen, say, others),
        is_of_tuning=isinstance(seen, Tuned),
        untold=untold,
    )


# Fields that move the rates most; the others are assumed in silence, as `rksp score` does.
_TOLD = ("optimizer", "schedule", "warmup_steps", "max_steps", "batch_size", "sequence_length")


def _rate(log_rate: float | None) -> float | None:
    return None if log_rate is None or not math.isfinite(log_rate) else 10**log_rate


def _edge_error(seen: LabelledRuns, say: Estimate) -> float:
    return abs(say.log_edge - sum(seen.bracket) / 2)


def _is_inside(seen: LabelledRuns, say: Estimate) -> bool:
    low, high = seen.bracket
    return say.edge.below(10**low) <= 0.95 and say.edge.below(10**high) >= 0.05


def _surprise(seen: LabelledRuns, say: Estimate, others: Estimate | None) -> str:
    rates, failed = seen.log_rates, seen.failed
    low, high = seen.bracket
    if math.isfinite(high) and ((failed == 0) & (rates > high + 0.01)).any():
        above = 10 ** float(rates[(failed == 0) & (rates > high)].max())
        return f"it trained at {short(above, 2)}, above {short(10**high, 2)} where it failed"
    for estimate, whom in ((others, "the other runs"), (say, "rksp")):
        if estimate is None:
            continue
        distance = max(low - estimate.log_edge, estimate.log_edge - high, 0.0)
        if distance > _SURPRISING * estimate.edge.spread:
            side = "above" if low > estimate.log_edge else "below"
            factor = short(10**distance, 2)
            return f"its edge lies a factor of {factor} {side} what {whom} would have said"
    return ""


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
