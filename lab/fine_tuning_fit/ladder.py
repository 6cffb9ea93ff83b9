"""One ladder, recipe or run of fine-tuning as the fit sees it, wherever it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import between_neighbours
from rksp.ground.errors import InputError
from rksp.models.families import FAMILIES

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
        noise: Standard error of each result, `[runs]`; 0 where it is not known.
        higher_is_better: Whether `results` are scores.
        chosen: The rate of the best result, or the one that was chosen; None for a failed run.
        at_border: Whether the best result stands at an end of the ladder.
        count: Rows alike that this one stands for; those of cards are each a source of its own.
        width: Of the hidden states, for the public formula; None where it is not known.
        untrained: Result of not training at all; None where it is not known.
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
    noise: Sequence[float] = ()
    higher_is_better: bool = False
    chosen: float | None = None
    at_border: bool = False
    count: int = 1
    width: float | None = None
    untrained: float | None = None

    @property
    def has_edge(self) -> bool:
        """Whether a failure was seen above a rate that trained."""
        return all(map(math.isfinite, self.edge))

    def trained_runs(self) -> list[tuple[float, float, float]]:
        """(rate, result, its noise) of every run that trained and has a result, ascending."""
        columns = zip(self.rates, self.results, self.noise, self.failed, strict=True)
        return [
            (rate, result, noise)
            for rate, result, noise, failed in columns
            if result is not None and not failed
        ]

    def shortfall(self, rate: float) -> tuple[float, float]:
        """Return what a rate loses against the best, and its standard error, as shares of the best.

        Results are linear between the runs, and as at the end for one more step beyond it. Farther
        out nothing is known, and the loss is infinite, as it is from the first failed rate on.
        """
        runs = self.trained_runs()
        rates = [run[0] for run in runs]
        low, high = 2 * rates[0] - rates[:2][-1], 2 * rates[-1] - rates[-2:][0]
        if not low <= rate <= high or rate >= self.edge[1]:
            return math.inf, 0.0
        sign = -1.0 if self.higher_is_better else 1.0
        _, best, noise = min(runs, key=lambda run: sign * run[1])
        here, doubt = (interpolated(rate, [(run[0], run[n]) for run in runs]) for n in (1, 2))
        return sign * (here - best) / abs(best), math.hypot(doubt, noise) / abs(best)


def ladder_of_runs(
    name: str,
    inputs: FineTuningInputs,
    runs: Sequence[tuple[float, float | None, bool | None]],
    *,
    noise: Sequence[float] = (),
    higher_is_better: bool = False,
    forgetting: tuple[float, float] | None = None,
    width: float | None = None,
    untrained: float | None = None,
) -> FineTuningLadder:
    """Return a ladder with its brackets: the one way in for every source.

    The edge lies between the first failed rate above the best one and the last below it that
    trained. A run of which neither an end nor a failure is known says nothing. The best rate lies
    around all rates whose results are within one standard error of the best (Breiman et al., 1984,
    *Classification and Regression Trees*, section 3.4.3), the error of the difference.

    Args:
        name: Of the ladder.
        inputs: Of all its runs, with their source.
        runs: (log10 of the rate, held-out result or None, failed or None if not known).
        noise: Standard error of each result; empty where none is known.
        higher_is_better: Whether results are scores.
        forgetting: Where the old abilities go.
        width: Of the hidden states.
        untrained: Result of not training at all.

    Raises:
        InputError: No run trained.
    """
    noise = noise or [0.0] * len(runs)
    joined = sorted(zip(runs, noise, strict=True), key=lambda one: one[0][0])
    runs, noise = [run for run, _ in joined], [error for _, error in joined]
    trained = [
        (rate, result, error)
        for (rate, result, failed), error in joined
        if result is not None and not failed
    ]
    if not trained:
        raise InputError(f"No run of the ladder {name:.80} trained.")
    sign = -1.0 if higher_is_better else 1.0
    chosen, best, doubt = min(trained, key=lambda run: sign * run[1])
    level = [
        rate
        for rate, result, error in trained
        if rate == chosen or sign * (result - best) < math.hypot(error, doubt)
    ]
    known = [rate for rate, result, failed in runs if failed or result is not None]
    first_failed = next((rate for rate, _, failed in runs if failed and rate > chosen), math.inf)
    low, high = (between_neighbours(known, known.index(rate)) for rate in (level[0], level[-1]))
    place = known.index(chosen)
    return FineTuningLadder(
        name=name,
        kind=LADDER,
        inputs=inputs,
        best=(low[0], high[1]),
        edge=(max(rate for rate, *_ in trained if rate < first_failed), first_failed),
        forgetting=forgetting,
        rates=tuple(rate for rate, _, _ in runs),
        failed=tuple(failed for _, _, failed in runs),
        results=tuple(result for _, result, _ in runs),
        noise=tuple(noise),
        higher_is_better=higher_is_better,
        chosen=chosen,
        at_border=place in (0, len(known) - 1),
        width=width,
        untrained=untrained,
    )


def interpolated(rate: float, runs: Sequence[tuple[float, float]]) -> float:
    """Return the result at a rate, linear between the runs and constant beyond them."""
    if rate <= runs[0][0]:
        return runs[0][1]
    for (left, low), (right, high) in pairwise(runs):
        if rate <= right:
            return low + (high - low) * (rate - left) / (right - left)
    return runs[-1][1]


def kind_of(lineage: str) -> str:
    """Return which of `rksp.models.families.KINDS` a lineage is; a decoder if no row names it."""
    kinds = {row.of or name: row.kind for name, row in FAMILIES.items()}
    return kinds.get(lineage) or "decoder"
