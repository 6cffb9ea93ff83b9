"""What the shipped model would have said of past runs, and how they contradict it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.fit.metrics import auroc, ece
from rksp.documents.own_runs import (
    HistoryReport,
    LeftOutReport,
    PastLadderReport,
    PastRunReport,
    ScorecardReport,
)
from rksp.ground.text import short
from rksp.own_runs.history import History, PastLadder
from rksp.own_runs.informed import InformedModel
from rksp.own_runs.observed import Observed
from rksp.recipe import Recipe

_SURPRISING = 3.0  # spreads beyond which a ladder contradicts what is known of others
_MOST_COMPARED = 60  # ladders; each is compared with all others
_BINS = 10


def history_report(history: History, model: EdgeModel) -> HistoryReport:
    """Return every run with its label, what the model says of it, and what contradicts what."""
    others = _said_by_others(history, model)
    return HistoryReport(
        ladders=[
            _ladder_report(ladder, model, others.get(id(ladder.observed)))
            for ladder in history.ladders
        ],
        left_out=[
            LeftOutReport(name=one.name, file=str(one.file), reason=one.reason)
            for one in history.left_out
        ],
        ignored=list(history.ignored),
        doubt=history.doubt,
    )


def scorecard(history: History, model: EdgeModel) -> ScorecardReport | None:
    """Return how well the model would have predicted the runs; None if none can be judged."""
    seen = [ladder.observed for ladder in history.ladders if ladder.observed is not None]
    said, failed = _runs_of(seen, model)
    if not len(said):
        return None
    edged = [one for one in seen if _has_edge(one)]
    known = [model.predict(one.inputs) for one in edged]
    errors = [_edge_error(one, say) for one, say in zip(edged, known, strict=True)]
    others = _said_by_others(history, model)
    helped = [_edge_error(one, others[id(one)]) for one in edged if id(one) in others]
    best = [
        abs(model.predict(one.inputs).log_best - math.log10(rate))
        for one in seen
        if one.is_ladder and (rate := _best_rate(one)) is not None
    ]
    inside = [_is_inside(one, say) for one, say in zip(edged, known, strict=True)]
    return ScorecardReport(
        runs=len(said),
        failed=int(failed.sum()),
        auroc=_finite(auroc(failed, said)),
        said=float(said.mean()),
        ece=ece(failed, said, bins=_BINS) if len(said) >= 2 * _BINS else None,
        ladders=len(edged),
        edge_error=_median(errors),
        best_error=_median(best),
        covered=float(np.mean(inside)) if inside else None,
        edge_error_with_others=_median(helped),
    )


def _runs_of(seen: Sequence[Observed], model: EdgeModel) -> tuple[np.ndarray, np.ndarray]:
    """Return P(failed) and what happened of every run whose end is known."""
    said: list[float] = []
    failed: list[float] = []
    for one in seen:
        estimate = model.predict(one.inputs)
        for rate, outcome in zip(one.log_rates, one.failed, strict=True):
            if math.isfinite(outcome):
                said.append(estimate.failed(10**rate))
                failed.append(outcome)
    return np.array(said), np.array(failed)


def _said_by_others(history: History, model: EdgeModel) -> dict[int, EdgeEstimate]:
    """Return, for each ladder that shows its edge, what all other ladders make the model say."""
    seen = history.seen
    edged = [one for one in seen if one.is_ladder and one.shows_edge]
    if len(edged) < 2 or len(edged) > _MOST_COMPARED:
        return {}
    found = {}
    for one in edged:
        rest = [other for other in seen if other is not one]
        informed = InformedModel(prior=model, family=one.family, seen=rest)
        found[id(one)] = informed.predict(one.inputs)
    return found


def _ladder_report(
    ladder: PastLadder, model: EdgeModel, others: EdgeEstimate | None
) -> PastLadderReport:
    seen = ladder.observed
    say = None if seen is None else model.predict(seen.inputs)
    edge = (None, None) if seen is None else _edge_of(seen)
    error, is_inside = None, None
    if seen is not None and say is not None and _has_edge(seen):
        error, is_inside = _edge_error(seen, say), _is_inside(seen, say)
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
        edge=edge,
        best_rate=None if seen is None else _best_rate(seen),
        likely_edge=None if say is None else say.likely_edge,
        best_said=None if say is None else 10**say.log_best,
        edge_error=error,
        is_inside=is_inside,
        unused=ladder.unused,
        surprise="" if seen is None or say is None else _surprise(seen, say, others),
    )


# Fields that move the rates most; the others are assumed in silence, as `rksp score` does.
_TOLD = ("optimizer", "schedule", "warmup_steps", "max_steps", "batch_size", "sequence_length")


def _edge_of(seen: Observed) -> tuple[float | None, float | None]:
    """Return the highest rate that trained below the first failure, and that failure's rate."""
    best = _best_rate(seen)
    failing = seen.log_rates[seen.failed == 1]
    above = failing[failing > math.log10(best)] if best is not None else failing
    high = float(above.min()) if len(above) else math.inf
    passing = seen.log_rates[(seen.failed == 0) & (seen.log_rates < high)]
    low = 10 ** float(passing.max()) if len(passing) else None
    return low, 10**high if math.isfinite(high) else None


def _has_edge(seen: Observed) -> bool:
    return seen.is_ladder and None not in _edge_of(seen)


def _best_rate(seen: Observed) -> float | None:
    if not np.isfinite(seen.losses).any():
        return None
    return 10 ** float(seen.log_rates[int(np.nanargmin(seen.losses))])


def _interval(seen: Observed) -> tuple[float, float]:
    low, high = _edge_of(seen)
    return (
        -math.inf if low is None else math.log10(low),
        math.inf if high is None else math.log10(high),
    )


def _edge_error(seen: Observed, say: EdgeEstimate) -> float:
    low, high = _interval(seen)
    return abs(say.log_edge - (low + high) / 2)


def _is_inside(seen: Observed, say: EdgeEstimate) -> bool:
    low, high = _interval(seen)
    bottom, top = (math.log10(say.quantile(share)) for share in (0.05, 0.95))
    return low <= top and high >= bottom


def _surprise(seen: Observed, say: EdgeEstimate, others: EdgeEstimate | None) -> str:
    """Say what contradicts what, as a clause; empty if nothing does."""
    rates, failed = seen.log_rates, seen.failed
    low, high = _interval(seen)
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


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
