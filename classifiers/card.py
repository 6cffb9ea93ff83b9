"""The evaluation as Markdown, for the model card."""

from __future__ import annotations

import math

import numpy as np

from rksp.classifiers.challengers import CHALLENGERS
from rksp.classifiers.edges import EdgeErrors, edge_table
from rksp.classifiers.evaluate import (
    Row,
    Score,
    baselines,
    difference,
    evaluate,
    near_edge,
    predict_held_out,
)
from rksp.classifiers.fit import fit_raw, labels, telling
from rksp.classifiers.metrics import auroc, ece, reliability
from rksp.classifiers.table import Table
from rksp.features import Tier, columns

EDGE_HEADER = ["| guess | median | 90th percentile | too low | ladders |", "|---|---|---|---|---|"]
_COLUMNS = ("auroc", "average_precision", "brier", "ece")


def evaluation_markdown(table: Table, *, question: str = "failed", draws: int = 200) -> str:
    """All tables of the evaluation, 95 % bootstrap intervals over ladders in brackets."""
    whole, digest = table, table.digest[:12]
    table = whole.take(telling(whole, question))
    y = labels(table, question)
    lines = [
        f"{len(table)} runs in {len(set(table.ladder))} ladders of {len(set(table.family))} "
        f"families; {y.mean():.1%} {question}; data {digest}.",
        *_silent(whole, table, question),
        "",
        "| split | predictor | AUROC | average precision | Brier | ECE | also |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in evaluate(table, question=question, draws=draws)]
    p = {tier: predict_held_out(table, question, tier, table.ladder) for tier in Tier}
    lines += _gains(table, question, p, draws)
    lines += ["", "Other models on the same features at the response tier:", ""]
    lines += ["| model | unseen ladders | unseen families | ECE |", "|---|---|---|---|"]
    lines += [_challenger(table, question, name) for name in CHALLENGERS]
    if question == "failed":
        lines += ["", "Error of the estimated edge in decades, unseen ladders:", ""]
        lines += EDGE_HEADER
        lines += [edge_line(row) for row in edge_table(table)]
    lines += ["", "Reliability at the response tier, unseen ladders, bins of equal count:", ""]
    lines += ["| predicted | observed | runs |", "|---|---|---|"]
    for predicted, observed, count in reliability(y, p[Tier.RESPONSE]):
        lines.append(f"| {predicted:.3f} | {observed:.3f} | {count} |")
    return "\n".join(lines) + "\n"


def _gains(table: Table, question: str, p: dict[Tier, np.ndarray], draws: int) -> list[str]:
    """What each tier is worth near the edge, against the rate alone, and against the tier below."""
    y, near, rate = labels(table, question), near_edge(table), baselines(table)["LR"]
    families = len(set(table.family))
    gain = lambda ours, theirs: _score(difference(y, ours, theirs, table.ladder, draws=draws))
    lines = [
        "",
        "What each tier adds (AUROC; near: runs within half a decade of their ladder's edge):",
        "",
        "| predictor | near | minus LR alone | minus the tier below | the same, unseen families |",
        "|---|---|---|---|---|",
    ]
    below, below_new = rate, rate
    for tier, seen in p.items():
        new = predict_held_out(table, question, tier, table.family, folds=families)
        cells = [gain(seen, rate), gain(seen, below), gain(new, below_new)]
        lines.append(f"| rksp {tier} | {auroc(y[near], seen[near]):.3f} | {' | '.join(cells)} |")
        below, below_new = seen, new
    return [*lines, f"| LR | {auroc(y[near], rate[near]):.3f} | – | – | – |"]


def edge_line(row: EdgeErrors) -> str:
    """A row of the table of edge errors."""
    return (
        f"| {row.predictor} | {row.median:.2f} | {row.percentile_90:.2f} | "
        f"{row.share_low:.0%} | {row.ladders} |"
    )


def _silent(whole: Table, table: Table, question: str) -> list[str]:
    """What the classifier is worth where nothing was learned, which it is not fitted on."""
    left = whole.take(~telling(whole, question))
    if not len(left):
        return []
    model = fit_raw(table, question, Tier.RESPONSE)
    score = auroc(labels(left, question), model.log_odds(left.x[:, columns(Tier.RESPONSE)]))
    return [
        f"Left out: {len(left)} runs in {len(set(left.ladder))} ladders that learned nothing; "
        f"there the response tier reaches AUROC {score:.3f} without having seen any of them."
    ]


def _challenger(table: Table, question: str, name: str) -> str:
    y, fit = labels(table, question), CHALLENGERS[name]
    seen = predict_held_out(table, question, Tier.RESPONSE, table.ladder, fit=fit)
    families = len(set(table.family))
    new = predict_held_out(table, question, Tier.RESPONSE, table.family, folds=families, fit=fit)
    return f"| {name} | {auroc(y, seen):.3f} | {auroc(y, new):.3f} | {ece(y, seen):.3f} |"


def _line(row: Row) -> str:
    cells = [_score(row.scores[name]) if name in row.scores else "" for name in _COLUMNS]
    also = ", ".join(
        f"{name.replace('_', ' ')} {score.value:.3f}"
        for name, score in row.scores.items()
        if name not in _COLUMNS
    )
    return f"| {row.split} | {row.predictor} | {' | '.join(cells)} | {also} |"


def _score(score: Score) -> str:
    if math.isnan(score.low):
        return f"{score.value:.3f}"
    return f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"
