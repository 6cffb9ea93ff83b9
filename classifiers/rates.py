"""Distributions of a rate for a source that was not in the data, and the chance to lapse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist

DO_NOT_EXCEED = 0.05  # share of the edges that lie below the rate of this name
_NORMAL = NormalDist()
_HALVINGS = 60  # of the search for a quantile


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
        return self.below_log(math.log10(rate))

    def below_log(self, log_rate: float) -> float:
        """Return the chance that the logarithm of the value lies below this one."""
        return _NORMAL.cdf((log_rate - self.location) / self.spread)

    def source_below_log(self, log_rate: float) -> float:
        """Return the chance that the location of the source lies below this one."""
        return _NORMAL.cdf((log_rate - self.location) / max(self.between, 1e-9))

    def source(self, share: float) -> float:
        """Return the logarithm below which this share of the sources has its location."""
        return self.location + self.between * _NORMAL.inv_cdf(share)


_Below = Callable[[RateDistribution, float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateMixture:
    """A mixture of normal distributions of the decimal logarithm of a rate.

    Few sources do not tell how far a new one may lie. So the parts have several spreads between
    sources, each with the weight that the data give it, and the mixture has longer tails than a
    normal distribution.

    Attributes:
        weights: Of the parts; their sum is 1.
        parts: All with one `within`.
    """

    weights: tuple[float, ...]
    parts: tuple[RateDistribution, ...]
    _solved: dict[tuple[float, _Below], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def location(self) -> float:
        """The median of the logarithm."""
        return self._where(0.5, RateDistribution.below_log)

    @property
    def within(self) -> float:
        """Standard deviation among ladders of one source."""
        return self.parts[0].within

    @property
    def spread(self) -> float:
        """The standard deviation of a new ladder's value around the mean of the mixture."""
        mean = self.mean(lambda part: part.location)
        return math.sqrt(self.mean(lambda part: part.spread**2 + (part.location - mean) ** 2))

    def below(self, rate: float) -> float:
        """Return the chance that the value lies below a rate."""
        log_rate = math.log10(rate)
        return self.mean(lambda part: part.below_log(log_rate))

    def quantile(self, share: float) -> float:
        """Return the rate below which this share of the values lies."""
        return 10 ** self._where(share, RateDistribution.below_log)

    def source(self, share: float) -> float:
        """Return the logarithm below which this share of the sources has its location."""
        return self._where(share, RateDistribution.source_below_log)

    def _where(self, share: float, below: _Below) -> float:
        """Return where the mean of `below` over the parts is this share."""
        asked = (share, below)
        if asked not in self._solved:
            self._solved[asked] = _solve(self, share, below)
        return self._solved[asked]

    def moved(self, by: float, unsure: float) -> RateMixture:
        """Return the mixture moved by some decades, which are known to this standard deviation."""
        parts = tuple(
            replace(p, location=p.location + by, between=math.hypot(p.between, unsure))
            for p in self.parts
        )
        return replace(self, parts=parts)

    def mean(self, of: Callable[[RateDistribution], float]) -> float:
        """Return the weighted mean of a value of the parts."""
        return math.fsum(w * of(part) for w, part in zip(self.weights, self.parts, strict=True))


def _solve(mixture: RateMixture, share: float, below: _Below) -> float:
    """Return where the mean of `below` over the parts is this share, by bisection."""
    parts = mixture.parts
    if share == 0.5 and len({part.location for part in parts}) == 1:
        return parts[0].location
    # The quantile lies among those of the widest and of the narrowest part.
    reach = 1e-9 + max(part.spread for part in parts) * abs(_NORMAL.inv_cdf(share))
    low = min(part.location for part in parts) - reach
    high = max(part.location for part in parts) + reach
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_below = _share(mixture, below, middle) < share
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2


def _share(mixture: RateMixture, below: _Below, at: float) -> float:
    return mixture.mean(lambda part: below(part, at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapse:
    """Chance that a run ends against what its rate and its edge say, and its 90 % interval."""

    share: float
    low: float
    high: float


def failed(edge: RateDistribution | RateMixture, lapse: Lapse, rate: float) -> float:
    """Return the chance that a run at this rate fails; it rises with the rate.

    Its edge lies below the rate, or it lapses: the distribution of the edge alone would say one in
    a billion where the data show that one in some hundred runs fails all the same.
    """
    return lapsing(edge.below(rate), lapse.share)


def failed_interval(
    edge: RateDistribution | RateMixture, lapse: Lapse, rate: float, *, tail: float, point: float
) -> tuple[float, float]:
    """Return P(failed) if this source's edges lie higher, or lower, than all but `tail` of them.

    The ends take the ends of the chance to lapse, so the interval is never empty. `point` is what
    `failed` says, which lies within.
    """
    log_rate = math.log10(rate)
    low, high = (
        _NORMAL.cdf((log_rate - edge.source(share)) / edge.within) for share in (1 - tail, tail)
    )
    # A lapse lifts what is near 0 and lowers what is near 1.
    ends = [lapsing(low, lapse.low), lapsing(low, lapse.high)]
    tops = [lapsing(high, lapse.low), lapsing(high, lapse.high)]
    return min(*ends, point), max(*tops, point)


def lapsing(chance: float, lapse: float) -> float:
    """Return a chance of failing, given the chance that a run ends against what its edge says."""
    return lapse + (1 - 2 * lapse) * chance


class EdgeAndBest:
    """What every answer says of its two distributions of rates."""

    __slots__ = ()
    edge: RateDistribution | RateMixture
    best: RateDistribution | RateMixture

    @property
    def log_edge(self) -> float:
        """The median of log10 of the edge."""
        return self.edge.location

    @property
    def log_best(self) -> float:
        """The median of log10 of the best rate."""
        return self.best.location

    def quantile(self, share: float) -> float:
        """Return the rate below which this share of the edges lies."""
        return self.edge.quantile(share)
