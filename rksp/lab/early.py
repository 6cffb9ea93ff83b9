"""Bound how well an edge can be predicted: from a ladder's first steps, and from its twin.

The first is a bound for every prediction that costs fewer steps: it sees all rates on the run's own
initialization and batches. The second is a bound for every prediction that does not see these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rksp.classifiers.edges import EdgeErrors
from rksp.lab.collection import trivial_loss
from rksp.lab.ladder import LadderRun
from rksp.outcome import Curves, OutcomePolicy

STEPS = (5, 10, 20, 40, 80)
_RISES = (0.05, 0.1, 0.25, 0.5, 1.0)  # nats above the best rate's loss
_WORST = 60.0  # nats; the loss of a run that did not get this far


def early_edge_errors(
    ladders: Sequence[LadderRun], steps: Sequence[int] = STEPS, policy: OutcomePolicy | None = None
) -> list[EdgeErrors]:
    """Compute the errors of the edge guessed from the losses after n steps at all rates.

    The guess is a ridge regression on the rate that is best by then and on the rates that are
    worse by `_RISES`. It is fitted on nine tenths of the ladders and tested on the last tenth.
    Only ladders count that learned, have an edge, and are longer than the most steps.
    """
    policy = policy or OutcomePolicy()
    long = [ladder for ladder in ladders if ladder.spec.recipe.max_steps > max(steps)]
    known = [(x, e) for x in long if (e := _learned_edge(x, policy)) is not None]
    chosen, edge, found = [x for x, _ in known], np.array([e for _, e in known]), []
    for count in steps:
        x = np.array([_landmarks(ladder, count) for ladder in chosen])
        model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 3, 9)))
        folds = KFold(10, shuffle=True, random_state=0)
        guess = cross_val_predict(model, x, edge, cv=folds)
        found.append(EdgeErrors.of(f"all rates for {count} steps", guess, edge))
    return found


def twin_edge_errors(
    ladders: Sequence[LadderRun], policy: OutcomePolicy | None = None
) -> EdgeErrors | None:
    """Compute the errors of the edge guessed from a ladder with another seed; None without any."""
    policy = policy or OutcomePolicy()
    twins: dict[str, list[float]] = {}
    for ladder in ladders:
        edge = _learned_edge(ladder, policy)
        if edge is not None:
            name = ladder.spec.model_copy(update={"seed": 0}).id
            twins.setdefault(name, []).append(edge)
    pairs = [pair for edges in twins.values() for pair in permutations(edges, 2)]
    if not pairs:
        return None
    guess, edge = np.array(pairs).T
    return EdgeErrors.of("its twin with another seed", guess, edge)


def _learned_edge(ladder: LadderRun, policy: OutcomePolicy) -> float | None:
    """Return log10 of the middle of the edge; None without an edge or if nothing was learned."""
    low, high = ladder.judge(policy).edge or (None, None)
    final = min(policy.final_loss(curves) for curves in ladder.curves)
    trivial = trivial_loss(ladder.spec)
    if high is None or trivial is None or final >= trivial - policy.margin:
        return None
    return (math.log10(low) + math.log10(high)) / 2


def _landmarks(ladder: LadderRun, count: int) -> list[float]:
    rates = np.log10(ladder.rates)
    losses = np.array([_loss_after(curves, count) for curves in ladder.curves])
    best = int(losses.argmin())
    marks = [float(rates[best])]
    for rise in _RISES:
        worse = np.flatnonzero(losses[best:] > losses[best] + rise)
        marks.append(float(rates[best + worse[0]]) if len(worse) else float(rates[-1]) + 0.5)
    return marks


def _loss_after(curves: Curves, count: int) -> float:
    """Return the mean loss of the last quarter of the first `count` steps."""
    seen = curves.loss[:count]
    if len(seen) < count or not np.isfinite(seen).all():
        return _WORST
    return min(_WORST, float(seen[-max(2, count // 4) :].mean()))
