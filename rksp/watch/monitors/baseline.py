"""The baseline of a series, and the distance that a healthy sample may have from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

TO_SIGMA = 1.4826  # converts the MAD of normal samples to standard deviations
MAD_EFFICIENCY = 0.37  # of the MAD relative to the standard deviation, for normal samples
LINE_VARIANCE = 13.4  # of the resistant line a quarter of its length ahead, in units of σ²/n
SINGLE_TAIL = 1e-5  # false alarms per sample and quantity: 30 quantities give 0.3 in 1,000 steps
RUN_TAIL = 1e-3  # the same for a sample that must repeat to raise an alarm
MOST = 25.0  # the largest threshold, however smooth the series is


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A resistant line through past samples, and their spread around it.

    Attributes:
        count: Number of samples that it was fitted to.
        median: Median of all samples.
        recent: Median of their newest third.
        end: The line at the newest sample.
        slope: The rise of the line from one sample to the next.
        spread: MAD around the line, in standard deviations.
        scale: The spread and the step of a random walk that comes as far as the line, in
            quadrature, plus the floor.
        correlation: Lag-one autocorrelation around the line.
        single_z: Threshold for one sample, at this count and correlation.
        run_z: Threshold for samples in a row, at this count and correlation.
        jump: MAD of the differences between neighbors, in standard deviations, plus the floor.
        jump_z: Threshold for a difference, which correlation does not raise.
    """

    count: int
    median: float
    recent: float
    end: float
    slope: float
    spread: float
    scale: float
    correlation: float
    single_z: float
    run_z: float
    jump: float
    jump_z: float

    def reference(self, direction: str, ahead: int = 1) -> float:
        """Return the value that a sample `ahead` samples after the newest is compared with.

        It is the worse one of the line and of the newest third. After a trend toward the bad side
        the trend may continue; after a trend toward the good side it may end.
        """
        both = (self.recent, self.end + self.slope * ahead)
        return max(both) if direction == "up" else min(both)

    def z(self, x: float, direction: str, ahead: int = 1) -> float:
        """Return the distance to the bad side in units of the spread."""
        return self._distance(x, direction, ahead) / self.scale

    def leaps(self, x: float, direction: str, ahead: int = 1) -> float:
        """Return the distance to the bad side in units of the jumps between neighbors."""
        return self._distance(x, direction, ahead) / self.jump

    def jump_of(self, x: float, last: float, direction: str) -> float:
        """Return the jump from the last sample to the bad side, in units of the usual jumps."""
        leap = (x - last - self.slope) / self.jump
        return {"up": leap, "down": -leap, "both": abs(leap)}[direction]

    def _distance(self, x: float, direction: str, ahead: int) -> float:
        up, down = x - self.reference("up", ahead), self.reference("down", ahead) - x
        return {"up": up, "down": down, "both": max(up, down)}[direction]


def fit_baseline(
    samples: Sequence[float], *, floor: float, layers: int, single_z: float, run_z: float
) -> Baseline:
    """Fit a baseline to at least four samples.

    The line joins the medians of the first and the last third (Tukey's resistant line). Without it
    a trend would count as spread and as correlation, and would hide a loss that doubles. Thresholds
    are at least `single_z` and `run_z`. With few samples they are quantiles of Student's t, with
    the degrees of freedom of a MAD of n' samples, widened by the error of the line. Here n' = n
    (1-ρ²)/(1+ρ²) for the spread and n (1-ρ)/(1+ρ) for the line (AR(1), Bartlett 1946). They are at
    most `MOST`. Tails are divided by the number of layers that are judged together.

    Args:
        samples: The past samples, oldest first.
        floor: The smallest change worth an alarm, added to the spread.
        layers: Number of layers that are judged together.
        single_z: The least threshold for one sample.
        run_z: The least threshold for samples in a row.
    """
    x = np.asarray(samples, dtype=np.float64)
    n = len(x)
    third = max(1, n // 3)
    recent = float(np.median(x[-third:]))
    slope = (recent - float(np.median(x[:third]))) / (n - third)
    level = x - slope * np.arange(n)
    start = float(np.median(level))
    spread = TO_SIGMA * float(np.median(np.abs(level - start)))
    jumps = TO_SIGMA * float(np.median(np.abs(np.diff(level))))
    # Var of a difference is 2 σ² (1-ρ); robust, and corrected for its bias at few samples with a
    # trend taken out (Marriott and Pope, 1954).
    correlation = 1 - 0.5 * (jumps / spread) ** 2 if spread > 0 else 0.0
    correlation = min(max(correlation + (2 + 4 * correlation) / n, 0.0), 0.999)
    square = correlation**2
    freedom = max(1.0, MAD_EFFICIENCY * n * (1 - square) / (1 + square))
    widening = math.sqrt(1 + LINE_VARIANCE / max(1.0, n * _share(correlation)))
    # A run of correlated samples is hardly more evidence than a single one.
    run_tail = SINGLE_TAIL**square * RUN_TAIL ** (1 - square)
    single, run = (
        widening * float(stdtrit(freedom, 1 - tail / layers)) for tail in (SINGLE_TAIL, run_tail)
    )
    median = float(np.median(x))
    least = max(floor, 1e-3 * abs(median), 1e-8)
    leap = float(stdtrit(max(1.0, MAD_EFFICIENCY * (n - 1)), 1 - SINGLE_TAIL / layers))
    return Baseline(
        count=n,
        median=median,
        recent=recent,
        end=start + slope * (n - 1),
        slope=slope,
        spread=spread,
        # A random walk that covers the trend in n samples takes steps of |slope| √n.
        scale=math.hypot(spread, slope * math.sqrt(n)) + least,
        correlation=correlation,
        single_z=min(max(single_z, single), MOST),
        run_z=min(max(run_z, run), MOST),
        jump=jumps + least,
        jump_z=min(max(single_z, leap), MOST),
    )


def _share(correlation: float) -> float:
    """Return the share of independent samples in a series with this lag-one autocorrelation."""
    return (1 - correlation) / (1 + correlation)
