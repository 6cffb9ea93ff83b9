"""Distributions of rates for a source that was not in the data, and what they say of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import ClassVar

from rksp.classifiers.artifacts import Deviation
from rksp.documents.own_runs import LearnedReport

_NORMAL = NormalDist()
_SURE = 0.005  # chance below which, and above one less which, pages print no number
_HALVINGS = 60  # of the search for a quantile
_RAREST = 1e-9  # share of the edges beyond the lowest rate, and the highest, that is told apart


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDistribution:
    """A normal distribution of the decimal logarithm of a rate: a part of a `RateMixture`.

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

    def alone(self) -> RateMixture:
        """Return the mixture that has no other part."""
        return RateMixture(weights=(1.0,), parts=(self,))


# Weight, location and standard deviation of each part of a mixture.
_Normals = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, kw_only=True)
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

    @cached_property
    def _values(self) -> _Normals:
        parts = zip(self.weights, self.parts, strict=True)
        return tuple((weight, part.location, part.spread) for weight, part in parts)

    @cached_property
    def _sources(self) -> _Normals:
        parts = zip(self.weights, self.parts, strict=True)
        return tuple((weight, part.location, max(part.between, 1e-9)) for weight, part in parts)

    @cached_property
    def _solved(self) -> dict[tuple[float, bool], float]:
        return {}

    @property
    def location(self) -> float:
        """The median of the logarithm."""
        return self._where(0.5)

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
        return _below(self._values, math.log10(rate))

    def quantile(self, share: float) -> float:
        """Return the rate below which this share of the values lies."""
        return 10 ** self._where(share)

    def source(self, share: float) -> float:
        """Return the logarithm below which this share of the sources has its location."""
        return self._where(share, of_source=True)

    def _where(self, share: float, *, of_source: bool = False) -> float:
        """Return the logarithm below which this share lies, of the values or of their sources."""
        asked = (share, of_source)
        if asked not in self._solved:
            widest = max(width for _, _, width in self._values)
            normals = self._sources if of_source else self._values
            self._solved[asked] = _solve(normals, share, widest)
        return self._solved[asked]

    def moved(self, by: float) -> RateMixture:
        """Return the mixture moved by some decades."""
        parts = tuple(replace(part, location=part.location + by) for part in self.parts)
        return replace(self, parts=parts)

    def mean(self, of: Callable[[RateDistribution], float]) -> float:
        """Return the weighted mean of a value of the parts."""
        return math.fsum(w * of(part) for w, part in zip(self.weights, self.parts, strict=True))


def _solve(normals: _Normals, share: float, widest: float) -> float:
    """Return the logarithm below which this share lies, by bisection; no part may be wider."""
    locations = [location for _, location, _ in normals]
    if len(normals) == 1:
        return locations[0] + normals[0][2] * _NORMAL.inv_cdf(share)
    if share == 0.5 and len(set(locations)) == 1:
        return locations[0]
    # The quantile lies among those of the widest and of the narrowest part.
    reach = 1e-9 + widest * abs(_NORMAL.inv_cdf(share))
    low, high = min(locations) - reach, max(locations) + reach
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:  # neighbours: no float lies between them
            break
        if _below(normals, middle) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _below(normals: _Normals, log_rate: float) -> float:
    cdf = _NORMAL.cdf
    return math.fsum([w * cdf((log_rate - at) / width) for w, at, width in normals])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lapse:
    """Chance that a run ends against what its rate and its edge say, and its 90 % interval."""

    share: float
    low: float
    high: float


def says_nothing(low: float, high: float) -> bool:
    """Return whether an interval of P(failed) is printed as from <1 % to >99 %."""
    return low < _SURE and high > 1 - _SURE


def sharpened(share: float, sharpness: float) -> float:
    """Return a share with its odds raised to a power, if it is below one half.

    The few edges that lie far below all others make a low rate look more often failing than it is;
    the power is fitted to sources left out. 1 leaves the share as it is, and so does one half.
    """
    return share if share >= 0.5 else powered(share, sharpness)


def powered(share: float, power: float) -> float:
    """Return a share with its odds raised to a power; 1 leaves it as it is."""
    if power == 1:
        return share
    less, more = math.pow(share, power), math.pow(1 - share, power)
    return less / (less + more)


def _lapsing(chance: float, lapse: float) -> float:
    """Return a chance of failing, given the chance that a run ends against what its edge says."""
    return lapse + (1 - 2 * lapse) * chance


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeAndBest:
    """What every answer says of its two distributions of rates, which are peak rates.

    Attributes:
        edge: Of the rate from which a run fails.
        best: Of the best rate.
        lapse: Chance that a run ends against what its rate and the edge say.
        sharpness: Of the share of edges below a rate, as in `sharpened`.
        contributions: What each column or term adds to log10 of the edge, in decades.
        learned: How far a team's own runs moved it; None where there are none.
        tail: Share of the sources beyond each end of the interval of P(failed).
    """

    tail: ClassVar[float]
    edge: RateMixture
    best: RateMixture
    lapse: Lapse
    sharpness: float = 1.0
    contributions: Mapping[str, float]
    learned: LearnedReport | None = None

    @property
    def log_edge(self) -> float:
        """The median of log10 of the edge."""
        return self.edge.location

    @property
    def log_best(self) -> float:
        """The median of log10 of the best rate."""
        return self.best.location

    @property
    def likely_edge(self) -> float:
        """The median of the edge, at which P(failed) is one half."""
        return self.rate_at(0.5)

    def failed(self, rate: float) -> float:
        """Return the chance that a run at this rate fails; it rises with the rate.

        Its edge lies below the rate, or it lapses: the distribution of the edge alone would say one
        in a billion where the data show that one in some hundred runs fails all the same.
        """
        return _lapsing(sharpened(self.edge.below(rate), self.sharpness), self.lapse.share)

    def rate_at(self, probability: float) -> float:
        """Return the rate at which `failed` is this; it rises with the probability.

        No rate has so small a chance as that to lapse, and none so large a one as its complement:
        then it is the rate from which P(failed) moves no further towards it.
        """
        chance = 0.5 + (probability - 0.5) / (1 - 2 * self.lapse.share)  # exactly 0.5 of 0.5
        share = sharpened(min(max(chance, _RAREST), 1 - _RAREST), 1 / self.sharpness)
        return self.edge.quantile(share)

    def interval(self, rate: float) -> tuple[float, float]:
        """Return P(failed) if the edges of a source lie higher, or lower, than all but `tail`.

        The ends take the ends of the chance to lapse, so the interval is never empty, and P(failed)
        lies within.
        """
        shares, log_rate = (1 - self.tail, self.tail), math.log10(rate)
        low, high = (
            _NORMAL.cdf((log_rate - self.edge.source(share)) / self.edge.within) for share in shares
        )
        # A lapse lifts what is near 0 and lowers what is near 1.
        lapses, point = (self.lapse.low, self.lapse.high), self.failed(rate)
        ends, tops = ([_lapsing(end, lapse) for lapse in lapses] for end in (low, high))
        return min(*ends, point), max(*tops, point)

    def diverged(self, rate: float) -> float | None:
        """Return the chance that a run at this rate diverges; None where no data tell it apart."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a prediction for an unseen source is off: standard deviations, in decades.

    Attributes:
        within: Of a ladder around its source.
        between: Of a source around the prediction. Few sources leave it uncertain, so there is one
            value for each of `EdgeModel.weights`: quantiles of its posterior, ascending.
    """

    within: Deviation
    between: Sequence[Deviation]

    def mixed(self, other: Spread, share: float) -> Spread:
        """Return the spread between this one and another, at a share of the way."""
        pairs = zip((self.within, *self.between), (other.within, *other.between), strict=True)
        within, *between = [(1 - share) * a + share * b for a, b in pairs]
        return Spread(within=within, between=between)

    def wider(self, more: Iterable[float]) -> Spread:
        """Return the spread with more standard deviations between sources."""
        extra = list(more)
        return Spread(within=self.within, between=[math.hypot(b, *extra) for b in self.between])

    def around(self, location: float, weights: Sequence[float]) -> RateMixture:
        """Return the distribution of a rate with this location, a logarithm."""
        part = lambda between: RateDistribution(
            location=location, within=self.within, between=between
        )
        return RateMixture(weights=tuple(weights), parts=tuple(map(part, self.between)))
