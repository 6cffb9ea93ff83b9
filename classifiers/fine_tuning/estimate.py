"""What the model of fine-tuning says of one run: three rates, a probability, a ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rksp.classifiers.rates import EdgeAndBest, Lapse, RateDistribution

if TYPE_CHECKING:
    from rksp.documents.own_runs import LearnedReport


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningEstimate(EdgeAndBest):
    """What the model says; rates are peak rates.

    Attributes:
        best: Of the rate with the best held-out result.
        edge: Of the rate from which a run fails.
        forgetting: Of the rate from which a tenth of the untouched abilities is lost; None where
            no data show it.
        contributions: What each term adds to log10 of the edge, in decades.
        unseen: (factor, level) of every name that the data do not hold.
        usual: The usual rate where no data beat it, else None; `start_here` is then that rate.
        learned: How far a team's own runs moved it; None where there are none.
    """

    tail: ClassVar[float] = 0.1
    best: RateDistribution
    edge: RateDistribution
    forgetting: RateDistribution | None
    lapse: Lapse
    contributions: Mapping[str, float]
    unseen: tuple[tuple[str, str], ...]
    usual: float | None = None
    learned: LearnedReport | None = None

    @property
    def start_here(self) -> float:
        """The usual or the median best rate, or `do_not_exceed` where that is lower."""
        usual = self.best.quantile(0.5) if self.usual is None else self.usual
        return min(usual, self.do_not_exceed())
