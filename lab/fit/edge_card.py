"""The evaluation of the model of the edge as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lab.fit.edge_ceiling import ceiling_table
from lab.fit.edge_ladder import LAB, PUBLISHED, EdgeLadder
from lab.fit.edge_left_out import (
    batches,
    keys,
    left_out_table,
    optimizers_left_out,
    pair_table,
    predicted,
    shape_of,
    source_of,
    teams_table,
)
from lab.fit.edge_lengths import bridge, horizons, warmups
from lab.fit.edge_scores import (
    CONFIG_ONLY,
    Prediction,
    PublishedRecipe,
    auroc_of,
    published,
    rule_guesses,
    single_runs,
)
from lab.fit.edge_transfer import transfer_errors
from lab.fit.edge_verdicts import verdict_table
from lab.fit.metrics import difference
from rksp.classifiers.edge_inputs import ADAM_FAMILY
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.metrics import auroc, ece
from rksp.ground.model import definite

# Settings that single runs of public sources change, as tables name them.
_CHANGED = {
    "train_batch_size": "batch",
    "warmup": "warm-up",
    "beta1": "β₁",
    "beta2": "β₂",
    "weight_decay": "weight decay",
}


def edge_tables(
    ladders: Sequence[EdgeLadder],
    model: EdgeModel,
    pairs: Sequence[tuple[str, str, str, str]] = (),
    repeats: Sequence[Sequence[str]] = (),
) -> Iterator[str]:
    """Yield every table; those of public sources only where their ladders are given.

    Args:
        ladders: Of the lab and of public sources.
        model: Fitted on all ladders; its spreads are used where it is left out.
        pairs: Pairs of ladders, as `edge_left_out.pair_table` takes them.
        repeats: Names of lab ladders that differ in the seed alone.
    """
    in_fold = keys(ladders)["ladders of the lab"]
    judged = [x for x in ladders if in_fold(x) and x.best is not None]
    public = any(x.source not in (LAB, PUBLISHED) for x in ladders)
    if public:
        yield teams_table(ladders, model)
    yield left_out_table(ladders, model)
    yield ceiling_table(ladders, judged, repeats, pairs)
    if public:
        by_source = predicted(ladders, model, source_of)
        yield optimizers_left_out(ladders, model)
        by_source = {name: read for name, read in by_source.items() if _adam(read)}
        yield _sources(ladders, model, by_source)
        yield _rates(by_source)
        yield batches(ladders, model)
        yield _single_runs(ladders)
        yield _published(ladders, model)
        yield verdict_table(ladders, model)
        yield _shapes(ladders, model)
        yield warmups(ladders, model)
        yield _transfer(ladders)
    yield _lab(ladders, model)
    yield bridge(ladders, model)
    yield horizons(ladders)
    yield pair_table(ladders, pairs)


def _adam(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the ladders of AdamW and its relatives, without single runs."""
    return [
        p
        for p in predictions
        if p.ladder.inputs.optimizer in ADAM_FAMILY and p.ladder.best is not None
    ]


def _miss(predictions: Sequence[Prediction], of: str) -> float:
    """Return the median absolute error in decades; NaN where no ladder has the value."""
    chosen = [p for p in _adam(predictions) if of == "best" or p.ladder.has_edge]
    errors = [abs(getattr(p, of) - getattr(p.ladder, of)) for p in chosen]
    return float(np.median(errors)) if errors else math.nan


def _sources(
    ladders: Sequence[EdgeLadder], model: EdgeModel, by_source: dict[str, list[Prediction]]
) -> str:
    names = list(by_source)
    lines = [
        "### Whole public sources left out",
        "",
        "Median absolute error in decades, AdamW and its relatives; the mean is over sources.",
        "",
        f"| predictor | edge: mean | {' | '.join(names)} | best rate: mean |",
        f"|---|{'---|' * (len(names) + 2)}",
    ]
    config = predicted(ladders, model, source_of, CONFIG_ONLY)
    for title, found in (("rksp", by_source), ("rksp, configuration alone", config)):
        edges = [_miss(found[name], "edge") for name in names]
        bests = [_miss(found[name], "best") for name in names]
        lines.append(_errors(title, edges, bests))
    rules: dict[str, tuple[list[float], list[float]]] = {}
    for name in names:
        rest = [x for x in ladders if x.source != name]
        mine = [p.ladder for p in _adam(by_source[name])]
        for title, guess in rule_guesses(rest).items():
            edges, bests = rules.setdefault(title, ([], []))
            edges.append(float(np.median([abs(guess(x)[0] - x.edge) for x in mine if x.has_edge])))
            bests.append(float(np.median([abs(guess(x)[1] - definite(x.best)) for x in mine])))
    lines += [_errors(title, *found) for title, found in rules.items()]
    return "\n".join(lines)


def _errors(title: str, edges: Sequence[float], bests: Sequence[float]) -> str:
    cells = " | ".join("–" if math.isnan(value) else f"{value:.2f}" for value in edges)
    return f"| {title} | **{np.nanmean(edges):.2f}** | {cells} | {np.nanmean(bests):.2f} |"


def _rates(by_source: dict[str, list[Prediction]]) -> str:
    lines = [
        "What the three rates are worth there (excess loss in nats; a rate below a ladder counts "
        "as its lowest):",
        "",
        "| source | ladders | start here: median | 90 % | fails | above do not exceed |",
        "|---|---|---|---|---|---|",
    ]
    pooled: list[float] = []
    covered, judged = [], []
    probabilities: list[float] = []
    failed: list[bool] = []
    weights: list[float] = []
    number: list[int] = []
    for name, found in by_source.items():
        mine = _adam(found)
        lost = [float(p.ladder.excess_at(p.start)) for p in mine]
        edged = [p for p in mine if p.ladder.has_edge]
        shares = [p.is_covered for p in edged]
        normed = [p.is_covered for p in edged if p.ladder.inputs.norm != "none"]
        fails = f"{np.mean([p.start > p.ladder.edge for p in edged]):.0%}" if edged else "–"
        share = f"{np.mean(shares):.0%}" if edged else "–"
        lines.append(
            f"| {name} | {len(mine)} | {np.median(lost):.3f} | {np.quantile(lost, 0.9):.3f} | "
            f"{fails} | {share} |"
        )
        pooled += lost
        covered += [np.mean(shares)] if shares else []
        judged += [np.mean(normed)] if normed else []
        runs = sum(len(p.failed) for p in mine)
        for p in mine:
            probabilities += p.failed.tolist()
            failed += p.ladder.failed.tolist()
            weights += [1 / runs] * len(p.failed)
            number += [number[-1] + 1 if number else 0] * len(p.failed)
    lines.append(
        f"| all | {len(pooled)} | {np.median(pooled):.3f} | {np.quantile(pooled, 0.9):.3f} | | "
        f"{np.mean(covered):.0%} |"
    )
    lines.append(f"| all with a norm, which rksp judges | | | | | {np.mean(judged):.0%} |")
    y, odds = np.array(failed), np.array(probabilities)
    alike = _weighted_ece(y, odds, np.array(weights))
    usual, most = _ece_of_exact(odds, np.array(number), np.array(weights))
    lines += [
        "",
        f"P(failed) there: AUROC {auroc(y, odds):.3f}, ECE {ece(y, odds):.3f} over runs, ",
    ]
    lines[-1] += (
        f"{alike:.3f} with sources counted alike. So few ladders would give {usual:.3f} in the "
        f"mean if every chance were exact, and more than {most:.3f} in one of twenty cases."
    )
    return "\n".join(lines)


def _ece_of_exact(
    p: np.ndarray, ladder: np.ndarray, weights: np.ndarray, draws: int = 500
) -> tuple[float, float]:
    """Return the mean and the 95 % quantile of the error if every chance were exact.

    The edge of a ladder is drawn once, so its runs fail together.

    Args:
        p: Chances of failing, `[runs]`.
        ladder: Index of the ladder of every run, `[runs]`.
        weights: Of every run, `[runs]`.
        draws: Of all edges.
    """
    rng = np.random.default_rng(0)
    edges = rng.random((draws, int(ladder.max()) + 1))
    found = [_weighted_ece((p > drawn[ladder]).astype(float), p, weights) for drawn in edges]
    return float(np.mean(found)), float(np.quantile(found, 0.95))


def _weighted_ece(y: np.ndarray, p: np.ndarray, weights: np.ndarray, bins: int = 10) -> float:
    """Return the expected calibration error over bins of equal weight."""
    order = np.argsort(p, kind="stable")
    y, p, w = y[order], p[order], weights[order] / weights.sum()
    place = np.minimum((np.cumsum(w) * bins).astype(int), bins - 1)
    found = 0.0
    for k in np.unique(place):
        at = place == k
        found += abs(float((w[at] * (p[at] - y[at])).sum()))
    return found


def _lab(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Return what the rates are worth on the lab's ladders, an eighth left out at a time."""
    lines = ["### Ladders of the lab left out: what the rates are worth", ""]
    lines += ["| rate | excess loss | fails |", "|---|---|---|"]
    key = keys(ladders)["ladders of the lab"]
    found = [p for part in predicted(ladders, model, key).values() for p in part]
    lab = [x for x in ladders if x.source == LAB]
    rates: dict[str, Callable[[Prediction], float]] = {
        "start here": lambda p: p.start,
        "likely edge": lambda p: p.edge,
        "do not exceed": lambda p: p.ceiling,
        "median best rate of the optimizer": lambda p: _usual_best(p.ladder, lab),
    }
    lines += [f"| {title} | {_worth(found, rate)} |" for title, rate in rates.items()]
    config = [p for part in predicted(ladders, model, key, CONFIG_ONLY).values() for p in part]
    y = np.concatenate([p.ladder.failed for p in found])
    ours, theirs = (
        np.concatenate([p.ladder.rates - p.edge for p in read]) for read in (found, config)
    )
    names = np.concatenate([[p.ladder.name] * len(p.ladder.rates) for p in found])
    gain = difference(y, ours, theirs, names)
    lines += ["", f"Measuring adds {gain.value:.4f} [{gain.low:.4f}, {gain.high:.4f}] of AUROC."]
    return "\n".join(lines)


def _usual_best(ladder: EdgeLadder, lab: Sequence[EdgeLadder]) -> float:
    """Return the median best rate of the others with this optimizer, or of all if it has none."""
    others = [x for x in lab if x.name != ladder.name]
    kin = [x for x in others if x.inputs.optimizer == ladder.inputs.optimizer]
    return float(np.median([x.best for x in kin or others]))


def _worth(found: Sequence[Prediction], rate: Callable[[Prediction], float]) -> str:
    lost = np.mean([float(p.ladder.excess_at(rate(p))) for p in found])
    fails = np.mean([p.ladder.has_edge and rate(p) > p.ladder.edge for p in found])
    return f"{lost:.3f} | {fails:.0%}"


def _shapes(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    lines = [
        "### Shapes left out, the rest of their source known",
        "",
        "| shape | ladders with an edge | edge error | best-rate error |",
        "|---|---|---|---|",
    ]
    for name, found in predicted(ladders, model, shape_of).items():
        edged = sum(p.ladder.has_edge for p in _adam(found))
        if edged:
            miss, best = _miss(found, "edge"), _miss(found, "best")
            lines.append(f"| {name} | {edged} | {miss:.2f} | {best:.2f} |")
    return "\n".join(lines)


def _single_runs(ladders: Sequence[EdgeLadder]) -> str:
    keys = {
        "nothing (fitted on them)": lambda x: "",
        "the run's ladder": lambda x: x.name,
        "its optimizer in this source": lambda x: f"{x.source} {x.inputs.optimizer}",
        "its source": lambda x: x.source,
    }
    lines = [
        "### Runs that change one setting other than the rate",
        "",
        "AUROC of failing: over all of them, and over those that change one setting.",
        "",
        f"| left out | all | {' | '.join(_CHANGED.values())} |",
        f"|---|---|{'---|' * len(_CHANGED)}",
    ]
    for title, key in keys.items():
        runs = single_runs(ladders, key)
        of = lambda setting, runs=runs: [r for r in runs if r[0].changed.startswith(f"{setting}=")]
        cells = [f"{auroc_of(part):.2f}" for part in (runs, *map(of, _CHANGED))]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    failed = sum(bool(x.failed[0]) for x, _ in runs)
    return "\n".join([*lines, "", f"{len(runs)} runs, of which {failed} failed."])


def _transfer(ladders: Sequence[EdgeLadder]) -> str:
    lines = [
        "### Transfer of a rate between shapes of a source, the source left out",
        "",
        "| rule | median error of the edge's shift, decades | of the best rate's |",
        "|---|---|---|",
    ]
    for rule, edge, best in transfer_errors(ladders):
        lines.append(f"| {rule} | {edge:.3f} | {best:.3f} |")
    return "\n".join(lines)


def _published(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    found = published(ladders, model)
    counts = Counter(x.kind for x in found)
    parts = {kind: [x for x in found if x.kind == kind] for kind, _ in counts.most_common()}
    return "\n".join(
        [
            f"### {len(found)} published recipes that trained well, their developer left out",
            "",
            "*Start here* and *do not exceed* over the published rate, and the highest P(failed) "
            "at that rate.",
            "",
            "| kind | recipes | start here: median | within a factor of 3 | do not exceed is above "
            "| P(failed), most | end of its interval, most |",
            "|---|---|---|---|---|---|---|",
            *(f"| {kind.replace('_', '–')} {_recipes(part)}" for kind, part in parts.items()),
            f"| all {_recipes(found)}",
        ]
    )


def _recipes(found: Sequence[PublishedRecipe]) -> str:
    start = np.array([x.start for x in found])
    return (
        f"| {len(found)} | {np.median(start):.2f} | {np.mean((start >= 1 / 3) & (start <= 3)):.0%} "
        f"| {np.mean([x.ceiling > 1 for x in found]):.0%} | {max(x.failed for x in found):.0%} "
        f"| {max(x.failed_high for x in found):.0%} |"
    )
