"""One ladder, recipe or run of fine-tuning as the fit sees it, wherever it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.intervals import between_neighbours
from rksp.ground.errors import InputError

OPEN = (-math.inf, math.inf)
LADDER, RECIPE, RUN, PRACTICE, CARD = "ladder", "recipe", "run", "practice", "card"


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningLadder:
    """Runs that differ in the peak rate alone; or one run, or one chosen rate.

    Rates are decimal logarithms.

    Attributes:
        kind: `LADDER`; `RECIPE`, a rate that somebody chose and that trained; `RUN`; `PRACTICE`,
            the middle rate of the cards of one family; or `CARD`, a rate that cards say trained.
        inputs: `inputs.source` is the group that is left out whole.
        best, edge, forgetting: Between which two rates each lies; infinite where a side is open.
        rates: Of every run, ascending, `[runs]`.
        failed: `[runs]`; None where the source does not say.
        results: Held-out loss or score, `[runs]`; None where there is none.
        higher_is_better: Whether `results` are scores.
        is_nats: Whether `results` are nats a token, which ladders can be compared in.
        chosen: The rate of the best result, or the one that was chosen; None for a failed run.
        at_border: Whether the best result stands at an end of the ladder.
        count: Rows alike that this one stands for; those of cards are each a source of its own.
        width: Of the hidden states, for the public formula; None where it is not known.
        untrained: Result of not training at all; None where it is not known.
        licence: As the row states it.
    """

    name: str
    kind: str
    inputs: FineTuningInputs
    best: tuple[float, float] = OPEN
    edge: tuple[float, float] = OPEN
    forgetting: tuple[float, float] | None = None
    rates: Sequence[float] = ()
    failed: Sequence[bool | None] = ()
    results: Sequence[float | None] = ()
    higher_is_better: bool = False
    is_nats: bool = False
    chosen: float | None = None
    at_border: bool = False
    count: int = 1
    width: float | None = None
    untrained: float | None = None
    licence: str = ""

    @property
    def has_edge(self) -> bool:
        """Whether a failure was seen above a rate that trained."""
        return all(map(math.isfinite, self.edge))

    def trained_runs(self) -> list[tuple[float, float]]:
        """(rate, result) of every run that did not fail and has a result, ascending."""
        return [
            (rate, result)
            for rate, result, failed in zip(self.rates, self.results, self.failed, strict=True)
            if result is not None and not failed
        ]

    def shortfall(self, rate: float) -> float:
        """Return what a rate loses against the best, as a share of the best result.

        Results are linear between the runs and constant beyond them; from the first failed rate on
        the loss is infinite.
        """
        if math.isfinite(self.edge[1]) and rate >= self.edge[1]:
            return math.inf
        runs = self.trained_runs()
        sign = -1.0 if self.higher_is_better else 1.0
        best = min(sign * result for _, result in runs)
        return (sign * interpolated(rate, runs) - best) / abs(best)


def ladder_of_runs(
    name: str,
    inputs: FineTuningInputs,
    runs: Sequence[tuple[float, float | None, bool | None]],
    *,
    higher_is_better: bool = False,
    is_nats: bool = False,
    forgetting: tuple[float, float] | None = None,
    width: float | None = None,
    untrained: float | None = None,
    licence: str = "",
) -> FineTuningLadder:
    """Return a ladder with its brackets: the one way in for every source.

    The edge lies between the first failed rate above the best one and the last below it that
    trained. A run of which neither an end nor a failure is known says nothing.

    Args:
        name: Of the ladder.
        inputs: Of all its runs, with their source.
        runs: (log10 of the rate, held-out result or None, failed or None if not known).
        higher_is_better: Whether results are scores.
        is_nats: Whether results are nats a token.
        forgetting: Where the old abilities go.
        count: Rows alike that this one stands for; those of cards are each a source of its own.
        width: Of the hidden states.
        untrained: Result of not training at all.
        licence: Of the row.

    Raises:
        InputError: No run trained.
    """
    runs = sorted(runs, key=lambda run: run[0])
    trained = [(rate, result) for rate, result, failed in runs if result is not None and not failed]
    if not trained:
        raise InputError(f"No run of the ladder {name:.80} trained.")
    sign = -1.0 if higher_is_better else 1.0
    chosen = min(trained, key=lambda run: sign * run[1])[0]
    known = [rate for rate, result, failed in runs if failed or result is not None]
    first_failed = next((rate for rate, _, failed in runs if failed and rate > chosen), math.inf)
    place = known.index(chosen)
    return FineTuningLadder(
        name=name,
        kind=LADDER,
        inputs=inputs,
        best=between_neighbours(known, place),
        edge=(max(rate for rate, _ in trained if rate < first_failed), first_failed),
        forgetting=forgetting,
        rates=tuple(rate for rate, _, _ in runs),
        failed=tuple(failed for _, _, failed in runs),
        results=tuple(result for _, result, _ in runs),
        higher_is_better=higher_is_better,
        is_nats=is_nats,
        chosen=chosen,
        at_border=place in (0, len(known) - 1),
        width=width,
        untrained=untrained,
        licence=licence,
    )


def interpolated(rate: float, runs: Sequence[tuple[float, float]]) -> float:
    """Return the result at a rate, linear between the runs and constant beyond them."""
    if rate <= runs[0][0]:
        return runs[0][1]
    for (left, low), (right, high) in pairwise(runs):
        if rate <= right:
            return low + (high - low) * (rate - left) / (right - left)
    return runs[-1][1]
