"""Between which two rates a best one lies, and moments of a normal value between two known ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ROOT = math.sqrt(2)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_RANGE = 4.0  # decades over which an interval that says nothing may lie
_FAR = 8.0  # standard deviations, beyond which a tail has no digits left


def doubted_moments(
    location: float, variance: float, low: float, high: float, mistaken: float
) -> tuple[float, float]:
    """Return the mean and the variance of a normal value that probably lies in [low, high].

    With the chance `mistaken` the interval says nothing, and is as likely as its share of
    `_RANGE` decades; so an interval far from where the value was expected moves it little.

    Args:
        location: Mean of the value before.
        variance: Of the value before.
        low: Least value; infinite where that side is open.
        high: Largest value; infinite where that side is open.
        mistaken: Chance that the interval says nothing.
    """
    spread = math.sqrt(variance)
    mass = _below((high - location) / spread) - _below((low - location) / spread)
    idle = mistaken * min((high - low) / _RANGE, 0.5)
    trusted = (1 - mistaken) * mass / max((1 - mistaken) * mass + idle, 1e-300)
    inside, left = matched_moments(location, variance, low, high)
    mean = trusted * inside + (1 - trusted) * location
    spreads = trusted * (left + (inside - mean) ** 2)
    return mean, spreads + (1 - trusted) * (variance + (location - mean) ** 2)


def matched_moments(
    location: float, variance: float, low: float, high: float
) -> tuple[float, float]:
    """Return the mean and the variance of a normal value, given that it lies in [low, high].

    An interval far out in a tail counts as if it began `_FAR` standard deviations out.

    Args:
        location: Mean of the value before.
        variance: Of the value before.
        low: Least value; infinite where that side is open.
        high: Largest value; infinite where that side is open.
    """
    spread = math.sqrt(variance)
    a, b = (low - location) / spread, (high - location) / spread
    if a > 0:  # the mirror image keeps the difference of two tails from cancelling
        mean, left = matched_moments(-location, variance, -high, -low)
        return -mean, left
    if b < -_FAR:
        return high, variance * 1e-2
    mass = _below(b) - _below(a)
    if mass < 1e-300:
        return location, variance
    at_a, at_b = _at(a), _at(b)
    first = (at_a - at_b) / mass
    second = ((a * at_a if at_a else 0.0) - (b * at_b if at_b else 0.0)) / mass
    return location + spread * first, variance * max(1 + second - first**2, 1e-6)


def _below(x: float) -> float:
    return 0.5 * math.erfc(-x / _ROOT)


def _at(x: float) -> float:
    return _DENSITY * math.exp(-0.5 * x * x) if math.isfinite(x) else 0.0


def between_neighbours(rates: Sequence[float], chosen: int) -> tuple[float, float]:
    """Return where the best rate lies: nearer to the best of the grid than to its neighbours.

    That is exact for a parabola. At an end of the grid the side is open.
    """
    here = rates[chosen]
    low = -math.inf if chosen == 0 else (rates[chosen - 1] + here) / 2
    high = math.inf if chosen == len(rates) - 1 else (here + rates[chosen + 1]) / 2
    return low, high
