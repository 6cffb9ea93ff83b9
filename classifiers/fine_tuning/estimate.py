"""What the model of fine-tuning says of one run: three rates, a probability, a ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

DO_NOT_EXCEED = 0.05  # share of the edges that lie below the rate of this name
_NINE_IN_TEN = 1.2815515655446004  # standard deviations beyond which one source in ten lies
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDistribution:
    """A normal distribution of the decimal logarithm of a rate.

    Attributes:
        location: Its median.
        within: Standard deviation among ladders of one source, model and method.
        between: Of the location itself: what is not known of this source, family and method.
    """

    location: float
    within: float
    between: float

    @property
    def spread(self) -> float:
        """The standard deviation of a new ladder's value."""
        return math.hypot(self.within, self.between)

    def quantile(self, share: float) -> float:
        """Return the rate below which this share of the values lies."""
        return 10 ** (self.location + self.spread * _NORMAL.inv_cdf(share))

    def below(self, rate: float) -> float:
        """Return the chance that the value lies below a rate."""
        return _NORMAL.cdf((math.log10(rate) - self.location) / self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapse:
    """Chance that a run ends against what its rate and its edge say, and its 90 % interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningEstimate:
    """What the model says; rates are peak rates.

    Attributes:
        best: Of the rate with the best held-out result.
        edge: Of the rate from which a run fails.
        forgetting: Of the rate from which a tenth of the untouched abilities is lost; None where
            no data show it.
        contributions: What each term adds to log10 of the edge, in decades.
        unseen: (factor, level) of every name that the data do not hold.
    """

    best: RateDistribution
    edge: RateDistribution
    forgetting: RateDistribution | None
    lapse: Lapse
    contributions: Mapping[str, float]
    unseen: tuple[tuple[str, str], ...]

    @property
    def start_here(self) -> float:
        """The median of the best rate, or `do_not_exceed` where that is lower."""
        return min(self.best.quantile(0.5), self.do_not_exceed())

    @property
    def likely_edge(self) -> float:
        """The median of the edge."""
        return self.edge.quantile(0.5)

    def do_not_exceed(self, share: float = DO_NOT_EXCEED) -> float:
        """Return the rate below which this share of the edges lies."""
        return self.edge.quantile(share)

    def failed(self, rate: float) -> float:
        """Return the chance that a run at this rate fails; it rises with the rate."""
        return self._lapsing(self.edge.below(rate), self.lapse.share)

    def interval(self, rate: float) -> tuple[float, float]:
        """Return P(failed) if this source's edges lie higher, or lower, than nine in ten.

        The ends take the ends of the chance to lapse, so the interval is never empty.
        """
        distance = math.log10(rate) - self.edge.location
        shift = _NINE_IN_TEN * self.edge.between
        low, high = (
            _NORMAL.cdf((distance + moved) / self.edge.within) for moved in (-shift, shift)
        )
        # A lapse lifts what is near 0 and lowers what is near 1.
        ends = [self._lapsing(low, self.lapse.low), self._lapsing(low, self.lapse.high)]
        tops = [self._lapsing(high, self.lapse.low), self._lapsing(high, self.lapse.high)]
        point = self.failed(rate)
        return min(*ends, point), max(*tops, point)

    def forgets(self, rate: float) -> float | None:
        """Return the chance that a run at this rate loses old abilities; None if not known."""
        return None if self.forgetting is None else self.forgetting.below(rate)

    @staticmethod
    def _lapsing(chance: float, lapse: float) -> float:
        return lapse + (1 - 2 * lapse) * chance
