"""What a series is compared with, and how far from it a healthy sample may lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

TO_SIGMA = 1.4826  # of the MAD, for normal samples
MAD_EFFICIENCY = 0.37  # of the MAD against the standard deviation, for normal samples
MEDIAN_VARIANCE = 1.571  # of the median, in units of σ²/n
SINGLE_TAIL = 1e-5  # false alarms per sample and quantity: 30 quantities give 0.3 in 1,000 steps
RUN_TAIL = 1e-3  # the same for a sample that must repeat to be an alarm
MOST = 25.0  # no series is so smooth that more than this goes unnoticed
WHITE_ENOUGH = 64  # independent samples that a CUSUM needs: its mean is then known to 0.16 σ


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Center and spread of past samples.

    Attributes:
        count: Samples it was fitted to.
        median, recent: Median of all, and of their newest third.
        scale: MAD around the median, in standard deviations, plus the floor.
        correlation: Lag-one autocorrelation.
        single_z, run_z: Thresholds at this many samples of this correlation.
    """

    count: int
    median: float
    recent: float
    scale: float
    correlation: float
    single_z: float
    run_z: float

    def reference(self, direction: str) -> float:
        """What the next sample is compared with: of the two medians the worse one.

        After a trend toward the bad side, its newest part is what may be expected.
        """
        both = (self.median, self.recent)
        return max(both) if direction == "up" else min(both)

    def z(self, x: float, direction: str) -> float:
        """Distance to the bad side in units of the spread."""
        up, down = x - self.reference("up"), self.reference("down") - x
        return {"up": up, "down": down, "both": max(up, down)}[direction] / self.scale

    @property
    def is_white_enough(self) -> bool:
        """Whether there are enough independent samples for a CUSUM."""
        return self.count * _share(self.correlation) >= WHITE_ENOUGH

    def innovation(self, x: float, last: float, direction: str) -> float:
        """The part of a sample that the one before does not predict, around the median."""
        r = self.correlation
        fresh = (x - self.median) - r * (last - self.median)
        sign = -1.0 if direction == "down" else 1.0
        return sign * fresh / (self.scale * math.sqrt(1 - r * r))


def fit_baseline(
    samples: Sequence[float], *, floor: float, layers: int, single_z: float, run_z: float
) -> Baseline:
    """Fits a baseline to at least four samples.

    Thresholds are at least `single_z` and `run_z`; with few samples they are the quantiles of
    Student's t whose degrees of freedom are those of a MAD of n' samples, widened by the error of
    the center, where n' = n (1-ρ²)/(1+ρ²) for the spread and n (1-ρ)/(1+ρ) for the center (AR(1),
    Bartlett 1946), at most `MOST` times the spread. Tails are divided by the number of layers that
    are judged together.
    """
    x = np.asarray(samples, dtype=np.float64)
    n = len(x)
    median = float(np.median(x))
    spread = TO_SIGMA * float(np.median(np.abs(x - median)))
    jumps = TO_SIGMA * float(np.median(np.abs(np.diff(x))))
    # Var of a difference is 2 σ² (1-ρ); robust, and corrected for its bias at few samples.
    correlation = 1 - 0.5 * (jumps / spread) ** 2 if spread > 0 else 0.0
    correlation = min(max(correlation + (1 + 3 * correlation) / n, 0.0), 0.999)
    square = correlation**2
    freedom = max(1.0, MAD_EFFICIENCY * n * (1 - square) / (1 + square))
    widening = math.sqrt(1 + MEDIAN_VARIANCE / max(1.0, n * _share(correlation)))
    # A run of correlated samples is hardly more evidence than one of them.
    run_tail = SINGLE_TAIL**square * RUN_TAIL ** (1 - square)
    single, run = (
        widening * float(stdtrit(freedom, 1 - tail / layers)) for tail in (SINGLE_TAIL, run_tail)
    )
    return Baseline(
        count=n,
        median=median,
        recent=float(np.median(x[-max(1, n // 3) :])),
        scale=spread + max(floor, 1e-3 * abs(median), 1e-8),
        correlation=correlation,
        single_z=min(max(single_z, single), MOST),
        run_z=min(max(run_z, run), MOST),
    )


def _share(correlation: float) -> float:
    """Independent samples in one of a series with this lag-one autocorrelation."""
    return (1 - correlation) / (1 + correlation)
