"""How far the estimated edge lies from the measured one, on ladders that were not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from rksp.classifiers.evaluate import near_edge, predict_held_out
from rksp.classifiers.fit import calibrate, fit_raw, held_out, labels
from rksp.classifiers.metrics import auroc
from rksp.classifiers.table import Table
from rksp.features import FEATURES, Evidence, columns

_DECADES = np.arange(-6.0, 2.0, 0.05)


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


def edge_table(table: Table, tiers: tuple[Evidence, ...] = tuple(Evidence)) -> list[EdgeErrors]:
    """Errors on unseen ladders of each tier, beside guesses that need no model.

    Ours is the rate at which the calibrated probability crosses one half. "family median" is the
    median edge of the other ladders of the family: what a person who knows the family would say.
    """
    firsts = first_rows(table)
    firsts = firsts[np.isfinite(table.log_edge[firsts])]
    edge, family = table.log_edge[firsts], table.family[firsts]
    rows = []
    for tier in tiers:
        guess = predict_edges(table, tier, firsts)
        rows.append(EdgeErrors.of(f"rksp {tier}", guess, edge))
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


def predict_edges(
    table: Table, tier: Evidence, firsts: np.ndarray, *, folds: int = 8, level: float = 0.5
) -> np.ndarray:
    """log10 of the rate at which P(failed) crosses `level`, `[ladders]`, for unseen ladders."""
    names = np.unique(table.ladder)
    fold_of = dict(zip(names, np.arange(len(names)) % folds, strict=True))
    fold = np.array([fold_of[name] for name in table.ladder])
    chosen = columns(tier)
    follows = np.array([FEATURES[i].follows_rate for i in chosen])
    guess = np.full(len(firsts), np.nan)
    for k in range(folds):
        rest = table.take(fold != k)
        raw = held_out(rest, "failed", tier, rest.ladder, folds=4)
        calibration = calibrate(raw, labels(rest, "failed"), rest.weights)
        model = fit_raw(rest, "failed", tier)
        for position in np.flatnonzero(fold[firsts] == k):
            row = firsts[position]
            shift = _DECADES - np.log10(table.rate[row])
            x = table.x[row, chosen] + shift[:, None] * follows
            p = expit(calibration.slope * model.log_odds(x) + calibration.offset)
            above = np.flatnonzero(p >= level)
            guess[position] = _DECADES[above[0]] if len(above) else _DECADES[-1]
    return guess


def first_rows(table: Table) -> np.ndarray:
    """Index of the first row of every ladder."""
    return np.unique(table.ladder, return_index=True)[1]


def near_edge_auroc(table: Table, tier: Evidence) -> float:
    """AUROC among the runs within half a decade of their edge, by unseen ladders."""
    p = predict_held_out(table, "failed", tier, table.ladder)
    near = near_edge(table)
    return auroc(table.failed[near], p[near])
