"""Labelled runs that differ in the rate alone, and what they changed about an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.fine_tuning.estimate import FineTuningEstimate
from rksp.classifiers.rates import RateDistribution, RateMixture
from rksp.documents.own_runs import LearnedReport, Level

_STILL, _WIDE = 1e-3, 0.6  # nats, and decades over which a real loss changes by more
_CAP = 1.0  # nats above the best; how far above a failed run ends says nothing
# Share of a ladder's rise and fall that may run against its order: of 651 real ladders 1 has more,
# of the same ladders with their losses shuffled 9 in 10.
_ORDERLY = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRuns(ABC):
    """The runs of one model and recipe that differ in the rate, or in the seed.

    Attributes:
        name: For people.
        log_rates: log10 of the nominal peak rates, ascending, `[runs]`.
        failed: 1 and 0; NaN where nobody can tell, `[runs]`.
        losses: Final losses in nats, NaN where there is none, `[runs]`.
    """

    name: str
    log_rates: np.ndarray
    failed: np.ndarray
    losses: np.ndarray

    @property
    def is_ladder(self) -> bool:
        """Whether it has several rates."""
        return len(np.unique(self.log_rates)) > 1

    @property
    def shows_edge(self) -> bool:
        """Whether some of its rates trained and others failed."""
        return bool((self.failed == 0).any() and (self.failed == 1).any())

    @property
    @abstractmethod
    def flat(self) -> float:
        """Nats within which the best of a ladder may be any of its rates."""

    @property
    def is_still(self) -> bool:
        """Whether its losses do not change with the rate at all, as a broken logger writes them."""
        rates, losses = self.by_rate()
        known = losses[np.isfinite(losses)]
        is_wide = len(known) >= 3 and float(np.ptp(rates)) >= _WIDE
        return is_wide and float(np.ptp(known)) < _STILL

    @property
    def is_orderly(self) -> bool:
        """Whether its losses fall to one best rate and rise beyond it, as real ladders do."""
        _, losses = self.by_rate()
        if np.isfinite(losses).sum() < 2 or len(losses) < 4:
            return True
        excess = np.minimum(np.where(np.isfinite(losses), losses, np.inf) - np.nanmin(losses), _CAP)
        steps = np.diff(excess)
        best = int(np.argmin(excess))
        against = steps[:best].clip(min=0).sum() - steps[best:].clip(max=0).sum()
        return bool(against <= max(2 * self.flat, _ORDERLY * np.abs(steps).sum()))

    def by_rate(self) -> tuple[np.ndarray, np.ndarray]:
        """Return every rate once, and the mean loss of its seeds; NaN where one has none."""
        rates, of = np.unique(self.log_rates, return_inverse=True)
        return rates, np.bincount(of, weights=self.losses) / np.bincount(of)


Estimate = EdgeEstimate | FineTuningEstimate


def learned_report(
    seen: Sequence[LabelledRuns], said: Estimate, found: Estimate, *, shares: Level, covers: bool
) -> LearnedReport:
    """Return how far the runs moved the answer.

    Args:
        seen: The runs.
        said: The answer without them.
        found: The answer with them.
        shares: The most that one of them has in common with what is asked about.
        covers: A ladder of the model itself shows its edge.
    """
    return LearnedReport(
        runs=sum(int(np.isfinite(one.failed).sum()) for one in seen),
        ladders=sum(one.is_ladder for one in seen),
        shares=shares,
        covers=covers,
        edge_shift=found.log_edge - said.log_edge,
        best_shift=found.log_best - said.log_best,
        edge_range_before=_ninety_percent_range(said.edge),
        edge_range_after=_ninety_percent_range(found.edge),
        best_range_before=_ninety_percent_range(said.best),
        best_range_after=_ninety_percent_range(found.best),
    )


def _ninety_percent_range(rates: RateDistribution | RateMixture) -> float:
    """Return the factor between the ends of the 90 % range of a rate."""
    return rates.quantile(0.95) / rates.quantile(0.05)
