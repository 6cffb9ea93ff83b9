"""How far the estimated edge lies from the measured one, on ladders that were not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rksp.classifiers.fit import fit_classifier
from rksp.classifiers.table import Table
from rksp.features import FeatureVector, Tier

RISK = 0.05  # the default of `rksp score --risk`
_DECADES = np.arange(-8.0, 2.0, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeErrors:
    """Errors of one way to guess a ladder's edge, in decades; negative means too low, thus safe.

    Attributes:
        median, percentile_90: Of the absolute error.
        share_low: Share of the ladders whose guess is below the measured edge.
        ladders: Number of ladders with a measured edge.
    """

    predictor: str
    median: float
    percentile_90: float
    share_low: float
    ladders: int

    @classmethod
    def of(cls, predictor: str, guess: np.ndarray, edge: np.ndarray) -> EdgeErrors:
        error = guess - edge
        return cls(
            predictor=predictor,
            median=float(np.median(np.abs(error))),
            percentile_90=float(np.quantile(np.abs(error), 0.9)),
            share_low=float((error < 0).mean()),
            ladders=len(edge),
        )


def edge_table(table: Table, tiers: tuple[Tier, ...] = tuple(Tier)) -> list[EdgeErrors]:
    """Errors on unseen ladders of each tier, beside guesses that need no model.

    Ours are the rate at which the calibrated probability crosses one half, and the safe rate, which
    is meant to err low. "family median" is the median edge of the other ladders of the family: what
    a person who knows the family would say.
    """
    firsts = first_rows(table)
    firsts = firsts[np.isfinite(table.log_edge[firsts])]
    edge, family = table.log_edge[firsts], table.family[firsts]
    guesses = {}
    for tier in tiers:
        likely, safe = read_unseen(table, tier, firsts)
        guesses |= {f"rksp {tier}": likely, f"rksp {tier}, safe rate": safe}
    rows = [EdgeErrors.of(name, guess, edge) for name, guess in guesses.items()]
    rows.sort(key=lambda row: row.predictor.endswith("safe rate"))
    median = np.array([np.median(np.delete(edge, i)) for i in range(len(edge))])
    rows.append(EdgeErrors.of("one rate for all (median edge)", median, edge))
    rows.append(EdgeErrors.of("fixed 3e-4", np.full(len(edge), np.log10(3e-4)), edge))
    own = [
        np.median(edge[(family == name) & (np.arange(len(edge)) != i)])
        if (family == name).sum() > 1
        else np.median(edge)
        for i, name in enumerate(family)
    ]
    rows.append(EdgeErrors.of("family median", np.array(own), edge))
    return rows


def read_unseen(
    table: Table, tier: Tier, firsts: np.ndarray, *, folds: int = 8, risk: float = RISK
) -> tuple[np.ndarray, np.ndarray]:
    """What a classifier that did not see a ladder says of it, as log10 of rates.

    Args:
        firsts: One row of each ladder, `[ladders]`.
        risk: Bound on the upper end of the interval at the safe rate.

    Returns:
        Where P(failed) crosses one half, and the largest safe rate, each `[ladders]`.
    """
    names = np.unique(table.ladder)
    fold = np.searchsorted(names, table.ladder) % folds
    likely, safe = np.empty(len(firsts)), np.empty(len(firsts))
    for k in range(folds):
        rest = table.take(fold != k)
        classifier = fit_classifier(rest, {}, tiers=(tier,), questions=("failed",))
        for position in np.flatnonzero(fold[firsts] == k):
            row = firsts[position]
            features = FeatureVector(values=table.x[row], tier=tier)
            read = classifier.predict_at(features, _DECADES - np.log10(table.rate[row]))
            likely[position] = _largest([p.probability < 0.5 for p in read])
            safe[position] = _largest([p.high <= risk for p in read])
    return likely, safe


def _largest(holds: list[bool]) -> float:
    """The highest of the decades looked at for which this holds; the lowest if for none."""
    return float(_DECADES[np.flatnonzero(holds).max(initial=0)])


def first_rows(table: Table) -> np.ndarray:
    """Index of the first row of every ladder."""
    return np.unique(table.ladder, return_index=True)[1]
