"""Moments of a normal value that lies between two known ones."""

from __future__ import annotations

import math

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
