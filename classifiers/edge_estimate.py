"""What the model of the edge says of one run: three rates, a probability, an expected loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from rksp.classifiers.rates import EdgeAndBest, RateMixture, powered

_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 21) for i in range(21)])
_TOGETHER = 256  # rates whose losses are found in one piece of memory, half a megabyte
_OFFSETS = np.arange(-2.5, 1.0001, 0.025)  # decades around the best rate that are looked at


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeEstimate(EdgeAndBest):
    """What the model says of one model and recipe; rates are nominal peak rates.

    Two estimates are equal only if they are one object.

    Attributes:
        diverging: Of the rate from which a run diverges, as a multiple of the median edge.
        least_diverged: Least share of P(failed) that P(diverged) is.
        diverging_power: To which the odds of that share are raised.
        outside: Columns beyond the range of the data, each with by how much, in decades.
        unlike: What widens the edge's spread between sources, each as a standard deviation in
            decades: a family, an optimizer or a column that the data know little of.
    """

    tail: ClassVar[float] = 0.05
    diverging: RateMixture
    least_diverged: float
    diverging_power: float
    outside: Mapping[str, float]
    unlike: Mapping[str, float]
    knots: np.ndarray
    below: np.ndarray
    above: np.ndarray
    _lost: dict[float, float] = field(default_factory=dict, init=False, repr=False)

    def diverged(self, rate: float) -> float:
        """Return the chance that a run at this rate diverges: one way to fail, so no more than it.

        A loss or a gradient that is not finite, or beyond the thresholds of `OutcomePolicy`.
        """
        failed = self.failed(rate)
        share = min(1.0, self.diverging.below(rate / 10**self.log_edge) / failed)
        return failed * max(powered(share, self.diverging_power), self.least_diverged)

    def expected_excess(self, rate: float) -> float:
        """Return the nats that a run at this rate is expected to lose against the best rate."""
        self.lose_at([rate])
        return self._lost[rate]

    def lose_at(self, rates: Iterable[float]) -> None:
        """Find the expected losses of many rates together, in a tenth of the time."""
        asked = [rate for rate in dict.fromkeys(rates) if rate not in self._lost]
        for i in range(0, len(asked), _TOGETHER):
            some = asked[i : i + _TOGETHER]
            lost = self._excess(np.array([math.log10(rate) for rate in some]))
            self._lost.update(zip(some, lost.tolist(), strict=True))

    @cached_property
    def start_here(self) -> float:
        """The rate of the least expected loss."""
        rates = self.log_best + _OFFSETS
        return 10 ** float(rates[int(np.argmin(self._excess(rates)))])

    def _excess(self, log_rates: np.ndarray) -> np.ndarray:
        weights, locations, offsets = self._parts
        off = log_rates[:, None, None] - locations - offsets
        count = len(self.best.parts)
        lost = [
            np.interp(part, self.knots, curve).sum(axis=2)
            for part, curve in ((off[:, :count], self.below), (off[:, count:], self.above))
        ]
        means = np.concatenate(lost, axis=1) / len(_QUANTILES)
        # One after the other: `sum` adds in another order, and the last digit would differ.
        return np.cumsum(weights * means, axis=1)[:, -1]

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, locations `[parts, 1]` and offsets `[parts, quantiles]`, of best and edge."""
        parts = (*self.best.parts, *self.edge.parts)
        return (
            np.array([*self.best.weights, *self.edge.weights]),
            np.array([[part.location] for part in parts]),
            np.array([part.spread * _QUANTILES for part in parts]),
        )
