"""The chance to lapse, from how often the surest predictions came out wrong."""

from __future__ import annotations

from rksp.classifiers.rates import Lapse


def lapse_of(wrong: int, sure: int) -> Lapse:
    """Return the share of wrong ones among sure predictions, and its 90 % interval.

    The share is Laplace's estimate, the interval that of a Beta distribution after a uniform prior.
    """
    from scipy.stats import beta  # only fitting needs it

    low, high = beta.ppf([0.05, 0.95], wrong + 1, sure - wrong + 1)
    return Lapse(
        share=round((wrong + 1) / (sure + 2), 5),
        low=round(float(low), 5),
        high=round(float(high), 5),
    )
