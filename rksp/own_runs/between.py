"""Where between its rates a ladder has its edge and its best rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rksp.outcome import OutcomePolicy

# Standard deviations, as shares of the step between two rates. Real ladders of which every second
# to sixth rate was taken away are read as well as `READ`; `EVEN` is that of any place in the step.
# `python -m lab eval --real` prints both again.
READ, EVEN = 0.2, 12**-0.5
_BOWL = 0.5  # nats above the best, beyond which a loss says nothing of the curve's lowest point
_SUDDEN = 1.0  # nats: a run that ends this far above the best broke, and does not show how near


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A place between the rates of a ladder.

    Attributes:
        at: log10 of the rate.
        unsure: Its standard deviation, decades.
    """

    at: float
    unsure: float


def lowest(rates: np.ndarray, excess: np.ndarray, index: int, flat: float) -> Reading:
    """Return where the loss is lowest if that is nearer to this rate than to its neighbours.

    It is the lowest point of the parabola through the three losses, in the logarithm of the rate.
    Where they differ by no more than seeds do, it may be anywhere.

    Args:
        rates: log10, ascending, `[rates]`.
        excess: Nats above the best; inf where a run broke, `[rates]`.
        index: Of a rate that has neighbours.
        flat: Nats by which seeds differ.
    """
    left, here, right = rates[index - 1 : index + 2]
    first, middle, last = np.minimum(excess[index - 1 : index + 2], _BOWL)
    low, high = (left + here) / 2, (here + right) / 2
    step = high - low
    falls, rises = (middle - first) / (here - left), (last - middle) / (right - here)
    bend = (rises - falls) / (right - left)
    unsure = np.hypot(READ, flat / (2 * bend * step**2)) if bend > 0 else np.inf
    if unsure >= EVEN:
        return Reading(at=(low + high) / 2, unsure=EVEN * step)
    slope = (falls * (right - here) + rises * (here - left)) / (right - left)
    return Reading(at=float(np.clip(here - slope / (2 * bend), low, high)), unsure=unsure * step)


def crossing(rates: np.ndarray, excess: np.ndarray, flat: float) -> Reading | None:
    """Return where the loss passes the margin of a failure, between the last rate that trained.

    None where it does not, where the first failure broke, which comes at once, or where seeds
    differ by more than the two losses do.

    Args:
        rates: log10, ascending, `[rates]`.
        excess: Nats above the best; inf where a run broke, `[rates]`.
        flat: Nats by which seeds differ.
    """
    margin = OutcomePolicy().margin
    above = np.flatnonzero((np.arange(len(rates)) > np.argmin(excess)) & (excess > margin))
    if not len(above) or excess[above[0]] >= _SUDDEN:
        return None
    failed = int(above[0])
    rise, step = excess[failed] - excess[failed - 1], rates[failed] - rates[failed - 1]
    unsure = np.hypot(READ, flat / rise)
    if unsure >= EVEN:
        return None
    at = rates[failed - 1] + step * (margin - excess[failed - 1]) / rise
    return Reading(at=float(at), unsure=float(unsure * step))
