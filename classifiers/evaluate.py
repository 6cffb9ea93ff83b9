"""How well the classifier does, on runs that it has not seen in five senses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rksp.classifiers.fit import FOLDS, Fit, calibrate, fit_raw, held_out, labels
from rksp.classifiers.metrics import METRICS, auroc, bootstrap
from rksp.classifiers.table import Table
from rksp.features import FEATURE_NAMES, Tier, columns

NEAR = 0.5  # decades around the edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number with its 95 % bootstrap interval over ladders."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One predictor under one split."""

    split: str
    predictor: str
    scores: Mapping[str, Score]
    rows: int


def baselines(table: Table) -> dict[str, np.ndarray]:
    """Scores of the trivial and the published predictors, larger meaning riskier, `[rows]`."""

    def feature(name: str) -> np.ndarray:
        return table.x[:, FEATURE_NAMES.index(name)]

    rate = np.log10(table.rate)
    return {
        "M≈1 (published)": feature("near_unit_mass"),
        "ρ": feature("spectral_radius"),
        "κ(V)": feature("eigenvector_condition"),
        "M≈1 · log κ": feature("near_unit_mass") * feature("eigenvector_condition"),
        "LR": rate,
        "LR × depth": rate + np.log10(table.depth),
        "no norm": (table.family == "zoo_no_norm").astype(float),
        "initial gradient norm": feature("grad_norm"),
        "parameter count": np.log10(table.parameters),
        "one-step loss change": table.one_step_change,
    }


def predict_held_out(
    table: Table,
    question: str,
    tier: Tier,
    groups: np.ndarray,
    *,
    folds: int = FOLDS,
    fit: Fit = fit_raw,
) -> np.ndarray:
    """Calibrated probabilities, `[rows]`: neither fit nor calibration saw the row's group.

    Calibration is fitted on the held-out predictions of the other folds' groups.
    """
    names = np.unique(groups)
    folds = min(folds, len(names))
    p = np.full(len(table), np.nan)
    y = labels(table, question)
    chosen = columns(tier)
    fold_of = dict(zip(names, np.arange(len(names)) % folds, strict=True))
    fold = np.array([fold_of[name] for name in groups])
    for k in range(folds):
        rest, test = table.take(fold != k), fold == k
        raw = held_out(rest, question, tier, rest.ladder, folds=4, fit=fit)
        calibration = calibrate(raw, y[fold != k], rest.weights)
        model = fit(rest, question, tier)
        p[test] = calibration(model.log_odds(table.x[test][:, chosen]))
    return p


def score_rows(y: np.ndarray, p: np.ndarray, ladders: np.ndarray, *, draws: int) -> dict:
    """All metrics with intervals; missing predictions count as the median prediction."""
    filled = np.where(np.isfinite(p), p, np.nanmedian(p) if np.isfinite(p).any() else 0.0)
    is_probability = bool(((filled >= 0) & (filled <= 1)).all())
    scores = {}
    for name, metric in METRICS.items():
        if name in ("brier", "ece") and not is_probability:
            continue
        statistic = lambda rows, metric=metric: metric(y[rows], filled[rows])
        low, high = bootstrap(statistic, ladders, draws=draws)
        scores[name] = Score(value=metric(y, filled), low=low, high=high)
    return scores


def evaluate(
    table: Table,
    *,
    question: str = "failed",
    tiers: tuple[Tier, ...] = tuple(Tier),
    draws: int = 200,
) -> Iterator[Row]:
    """Rows of the evaluation table, split by split: ours at every tier, then the baselines.

    Splits: (a) by ladder; (b) one family left out; (c) one task left out; (d) fitted on the
    smaller half of the models and tested on the larger; (e) within one family across rates (median
    over families of (a)'s predictions).
    """
    y = labels(table, question)
    families = len(np.unique(table.family))
    size = table.width * np.sqrt(table.depth)
    is_large = size > np.median(size)
    for tier in tiers:
        p = predict_held_out(table, question, tier, table.ladder)
        yield Row(
            split="a: unseen ladders",
            predictor=f"rksp {tier}",
            scores=score_rows(y, p, table.ladder, draws=draws),
            rows=len(y),
        )
        within = [auroc(y[table.family == f], p[table.family == f]) for f in set(table.family)]
        yield _median_row("e: within a family", f"rksp {tier}", within)
        p = predict_held_out(table, question, tier, table.family, folds=families)
        per = [auroc(y[table.family == f], p[table.family == f]) for f in set(table.family)]
        scores = score_rows(y, p, table.ladder, draws=draws)
        scores["mean_family_auroc"] = _point(np.nanmean(per))
        scores["worst_family_auroc"] = _point(np.nanmin(per))
        yield Row(split="b: unseen family", predictor=f"rksp {tier}", scores=scores, rows=len(y))
        p = predict_held_out(table, question, tier, table.task, folds=99)
        yield Row(
            split="c: unseen task",
            predictor=f"rksp {tier}",
            scores=score_rows(y, p, table.ladder, draws=draws),
            rows=len(y),
        )
        small, large = table.take(~is_large), table.take(is_large)
        raw = held_out(small, question, tier, small.ladder)
        calibration = calibrate(raw, labels(small, question), small.weights)
        model = fit_raw(small, question, tier)
        p = calibration(model.log_odds(large.x[:, columns(tier)]))
        yield Row(
            split="d: small to large",
            predictor=f"rksp {tier}",
            scores=score_rows(labels(large, question), p, large.ladder, draws=draws),
            rows=len(large),
        )
    for name, p in baselines(table).items():
        yield Row(
            split="a: unseen ladders",
            predictor=name,
            scores=score_rows(y, p, table.ladder, draws=draws),
            rows=len(y),
        )
        filled = np.where(np.isfinite(p), p, np.nanmedian(p) if np.isfinite(p).any() else 0.0)
        within = [auroc(y[table.family == f], filled[table.family == f]) for f in set(table.family)]
        yield _median_row("e: within a family", name, within)


def difference(
    y: np.ndarray, ours: np.ndarray, theirs: np.ndarray, ladders: np.ndarray, *, draws: int = 200
) -> Score:
    """AUROC of ours minus theirs, with its interval over ladders."""
    statistic = lambda rows: auroc(y[rows], ours[rows]) - auroc(y[rows], theirs[rows])
    low, high = bootstrap(statistic, ladders, draws=draws)
    return Score(value=statistic(np.arange(len(y))), low=low, high=high)


def near_edge(table: Table) -> np.ndarray:
    """Mask of the runs within half a decade of their ladder's edge, `[rows]`."""
    return np.abs(np.log10(table.rate) - table.log_edge) <= NEAR


def _point(value: float) -> Score:
    return Score(value=float(value), low=float("nan"), high=float("nan"))


def _median_row(split: str, predictor: str, values: list[float]) -> Row:
    finite = [v for v in values if np.isfinite(v)]
    return Row(
        split=split,
        predictor=predictor,
        scores={"auroc": _point(np.median(finite)), "worst": _point(min(finite))},
        rows=len(finite),
    )
