"""What the model of fine-tuning says of one run: three rates, a probability, a ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rksp.classifiers.rates import (
    DO_NOT_EXCEED,
    EdgeAndBest,
    Lapse,
    RateDistribution,
    failed,
    failed_interval,
)

if TYPE_CHECKING:  # an answer needs no pydantic
    from rksp.documents.own_runs import LearnedReport

_TAIL = 0.1  # share of the sources beyond each end of the interval of P(failed)


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
        moved: Decades by which the rank of the adapters moves the usual rate.
        learned: How far a team's own runs moved it; None where there are none.
    """

    best: RateDistribution
    edge: RateDistribution
    forgetting: RateDistribution | None
    lapse: Lapse
    contributions: Mapping[str, float]
    unseen: tuple[tuple[str, str], ...]
    usual: float | None = None
    moved: float = 0.0
    learned: LearnedReport | None = None

    @property
    def start_here(self) -> float:
        """The usual or the median best rate, or `do_not_exceed` where that is lower."""
        usual = self.best.quantile(0.5) if self.usual is None else self.usual * 10**self.moved
        return min(usual, self.do_not_exceed())

    @property
    def likely_edge(self) -> float:
        """The median of the edge."""
        return self.edge.quantile(0.5)

    def do_not_exceed(self, share: float = DO_NOT_EXCEED) -> float:
        """Return the rate below which this share of the edges lies."""
        return self.edge.quantile(share)

    def failed(self, rate: float) -> float:
        """Return the chance that a run at this rate fails; it rises with the rate."""
        return failed(self.edge, self.lapse, rate)

    def interval(self, rate: float) -> tuple[float, float]:
        """Return P(failed) if this source's edges lie higher, or lower, than nine in ten."""
        point = self.failed(rate)
        return failed_interval(self.edge, self.lapse, rate, tail=_TAIL, point=point)
