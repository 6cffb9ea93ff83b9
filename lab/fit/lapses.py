"""What P(failed) is beside the share of edges below a rate: its lapses and its sharpness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rksp.classifiers.rates import Lapse, powered, sharpened

# The sharpnesses that are tried. A grid gives the same one on every processor.
_SHARPNESSES = [round(1 + 0.05 * n, 2) for n in range(41)]
_POWERS = [round(0.3 + 0.02 * n, 2) for n in range(51)]
_LEAST = 0.01  # share of one of the two endings, so that no run that failed has a chance of 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of one run whose source was left out: the share of edges below its rate.

    For the two endings it is the share of divergence, and `failed` whether it diverged.
    """

    share: float
    failed: bool
    weight: float


def said_of(shares: Iterable[float], failed: Iterable[bool], weight: float) -> list[Said]:
    """Return what was said of the runs of a ladder, each of which has this weight."""
    runs = zip(shares, failed, strict=True)
    return [Said(share=share, failed=bool(f), weight=weight) for share, f in runs]


def sharpness_of(runs: Sequence[Said], lapse: Lapse) -> float:
    """Return the sharpness with which P(failed) of these runs has the least logarithmic loss."""
    return _least_loss(_SHARPNESSES, runs, lambda run, value: _chance(run, value, lapse))


def power_of(runs: Sequence[Said]) -> float:
    """Return the power of the odds with which shares of divergence have the least loss.

    Args:
        runs: That failed: the share of P(failed) that is P(diverged), and whether they diverged.
    """
    chance = lambda run, power: min(max(powered(run.share, power), _LEAST), 1 - _LEAST)
    return _least_loss(_POWERS, runs, chance)


def _least_loss(
    values: Sequence[float], runs: Sequence[Said], chance: Callable[[Said, float], float]
) -> float:
    """Return the value of the least logarithmic loss of what was said of runs."""

    def loss(value: float) -> float:
        return math.fsum(
            -run.weight * math.log(abs(run.failed - 1 + chance(run, value))) for run in runs
        )

    return min(values, key=lambda value: round(loss(value), 6))


def _chance(run: Said, sharpness: float, lapse: Lapse) -> float:
    return lapse.share + (1 - 2 * lapse.share) * sharpened(run.share, sharpness)


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
