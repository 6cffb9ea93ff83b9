"""Measures the errors of the model of the edge on whole sources that it did not see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rksp.classifiers.edge_inputs import ADAM_FAMILY
from rksp.classifiers.edge_model import DO_NOT_EXCEED, EdgeModel, Horizon, horizon_share
from rksp.classifiers.fit.edge_ladder import LAB, PUBLISHED, EdgeLadder
from rksp.ground.model import definite

_TAIL = 1.6448536269514722  # standard deviations from the median to the 5 % quantile
_SURE = 1e-3  # a run that fails, or passes, with a chance below it has lapsed
_DECIMALS = 5

# (name, a model that saw nothing of it, its ladders) of a source or a family of the lab
HeldOut = tuple[str, EdgeModel, Sequence[EdgeLadder]]


def with_spreads(model: EdgeModel, held_out: Sequence[HeldOut]) -> EdgeModel:
    """Measure the spreads on what was left out: lab families first, then public sources.

    The spread of the edge is the least for which a share `DO_NOT_EXCEED` of the edges lies below
    its quantile, every source counting alike (conformal prediction over sources), and not below
    the root mean square error, widened for the number of sources as the error of a new value is
    around a mean of so few. The spread of the best rate follows from the median absolute error,
    since the best of a flat ladder may lie anywhere. Lapses are counted with these spreads.

    Args:
        model: Fitted on all ladders.
        held_out: What `edge_fit.held_out` gives.
    """
    edge: dict[bool, list[Miss]] = {True: [], False: []}
    best: dict[bool, list[Miss]] = {True: [], False: []}
    for _, seen, left_out in held_out:
        whole = [x for x in left_out if x.best is not None and _is_ordinary(x)]
        edges = [x for x in whole if x.has_edge]
        for x in whole:
            read, is_lab = seen.predict(x.inputs, x.measured), x.source == LAB
            reached, share = math.log10(x.inputs.peak_share), horizon_share(x.inputs.steps)
            best[is_lab].append(
                Miss(
                    error=read.log_best + reached - definite(x.best),
                    half=0.0,
                    long=share,
                    weight=1 / len(whole),
                )
            )
            if x.has_edge:
                error, half = read.log_edge + reached - x.edge, (x.high - x.low) / 2
                weight = 1 / len(edges)
                edge[is_lab].append(Miss(error=error, half=half, long=share, weight=weight))
    short, long = model.short, model.long
    if edge[True]:
        spread = _conformal(edge[True], None)
        short = _widened(short, spread, best[True])
    if edge[False]:
        spread = _conformal(edge[False], short.edge_spread)
        long = _widened(long, spread, best[False])
    model = replace(model, short=short, long=long)
    return replace(model, lapse=_lapse(model, held_out))


def with_spreads_of(model: EdgeModel, other: EdgeModel) -> EdgeModel:
    """Return the model with another's spreads and lapses, which cost many fits."""
    names = ("edge_spread", "edge_noise", "best_spread")
    of = lambda horizon: {name: getattr(horizon, name) for name in names}
    return replace(
        model,
        lapse=other.lapse,
        short=replace(model.short, **of(other.short)),
        long=replace(model.long, **of(other.long)),
    )


def _lapse(model: EdgeModel, held_out: Sequence[HeldOut]) -> float:
    """Return the share of the surest predictions that came out wrong (add-one estimate).

    A run far below its edge can fail, and one far above it can pass, for what is not its rate.
    """
    wrong, sure = 1, 2
    for _, seen, left_out in held_out:
        seen = with_spreads_of(seen, model)
        for x in left_out:
            if x.source == PUBLISHED or not _is_ordinary(x):
                continue
            read, reached = seen.predict(x.inputs, x.measured), math.log10(x.inputs.peak_share)
            said = np.array([read.failed(10 ** (rate - reached)) for rate in x.rates])
            is_sure = np.minimum(said, 1 - said) < _SURE
            sure += int(is_sure.sum())
            wrong += int((is_sure & ((said < 0.5) == x.failed)).sum())
    return rounded(wrong / sure)


def _widened(horizon: Horizon, spread: float, best: Sequence[Miss]) -> Horizon:
    spread = max(spread, horizon.edge_noise)
    return replace(horizon, edge_spread=rounded(spread), best_spread=_robust(best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """How far above the truth a prediction for an unseen source was, in decades.

    The truth lies within `half` of its middle, from which the error counts. `long` is where the
    run stands between the horizons, `weight` its share of its source.
    """

    error: float
    half: float
    long: float
    weight: float


def _is_ordinary(ladder: EdgeLadder) -> bool:
    """Say whether a source left out could be known: its optimizer and norms stand elsewhere too."""
    if ladder.source == LAB:
        return True
    return ladder.inputs.optimizer in ADAM_FAMILY and ladder.inputs.norm != "none"


def _conformal(misses: Sequence[Miss], short: float | None) -> float:
    """Return the least spread whose `DO_NOT_EXCEED` quantile lies above no more than that share.

    Args:
        misses: Of sources that were left out.
        short: The spread of short runs; None where every run has the spread that is looked for.
    """
    total = sum(m.weight for m in misses)  # the number of sources
    square = sum(m.weight * m.error**2 for m in misses) / total
    least = math.sqrt(square * (total + 1) / max(total - 1, 1))
    for spread in np.arange(least, 2.0, 0.005):
        reach = [
            _TAIL * (spread if short is None else (1 - m.long) * short + m.long * spread)
            for m in misses
        ]
        above = sum(
            m.weight * min(1.0, max(0.0, 0.5 + (m.error - r) / (2 * max(m.half, 1e-9))))
            for m, r in zip(misses, reach, strict=True)
        )
        if above <= DO_NOT_EXCEED * total:
            return float(spread)
    return 2.0


def _robust(misses: Sequence[Miss]) -> float:
    """Return the spread of a normal error with the weighted median of the absolute errors."""
    ordered = sorted((abs(m.error), m.weight) for m in misses)
    weights = np.cumsum([weight for _, weight in ordered])
    middle = int(np.searchsorted(weights, weights[-1] / 2))
    return rounded(1.4826 * ordered[middle][0])


def rounded(value: float | np.ndarray) -> float:
    """Return a number of the artifact, to five decimals."""
    return round(float(value), _DECIMALS) + 0.0
