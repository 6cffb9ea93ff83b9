"""What own runs changed about an answer, of random or of trained weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.fine_tuning.estimate import FineTuningEstimate
from rksp.classifiers.rates import RateDistribution, RateMixture
from rksp.documents.own_runs import LearnedReport, Level
from rksp.own_runs.labelled import LabelledRuns

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
