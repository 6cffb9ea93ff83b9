"""How well the model of the edge knows the length of a run and of its warm-up, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import BRIDGE, LAB, OPENLM, PUBLISHED, EdgeLadder
from lab.fit.edge_scores import Prediction
from lab.fit.edge_spreads import with_spreads_of
from rksp.classifiers.edge_model import EdgeModel
from rksp.documents.terms import DEFAULT_RISK


def horizons(ladders: Sequence[EdgeLadder]) -> str:
    """Return a row an optimizer: how many ladders, and how long and wide their runs are."""
    whole = [x for x in ladders if x.best is not None]
    singles = [x for x in ladders if x.best is None and x.source != PUBLISHED]
    lines = [
        "### What the data cover",
        "",
        "| optimizer | lab ladders | steps | width | public ladders | steps | width | runs that "
        "change one setting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    count = lambda name: sum(x.inputs.optimizer == name for x in whole)
    names = sorted({x.inputs.optimizer for x in ladders}, key=lambda name: (-count(name), name))
    for name in names:
        mine = [x for x in whole if x.inputs.optimizer == name]
        cells = _reach([x for x in mine if x.source == LAB])
        cells += _reach([x for x in mine if x.source != LAB])
        runs = sum(x.inputs.optimizer == name for x in singles)
        lines.append(f"| {name} | {' | '.join(cells)} | {runs or '–'} |")
    return "\n".join(lines)


def _reach(ladders: Sequence[EdgeLadder]) -> list[str]:
    if not ladders:
        return ["–"] * 3
    steps = [x.inputs.steps for x in ladders]
    widths = [x.inputs.width for x in ladders]
    span = lambda values: f"{min(values):,}–{max(values):,}"
    return [str(len(ladders)), span(steps), span(widths)]


def bridge(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Judge the ladders of ten times the steps, left out; empty where there are none."""
    mine = [x for x in ladders if x.group == BRIDGE and x.has_edge]
    if not mine:
        return ""
    rest = [x for x in ladders if x.group != BRIDGE]
    seen = with_spreads_of(fit_edge_model(rest, spreads=False), model)
    found = [Prediction.of(seen, x) for x in mine]
    lines = [
        "### The same models for ten times the steps, left out",
        "",
        "| steps | warm-up | ladders | widths | edge, median | said | error, median | excess loss "
        "of start here | fails |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for steps, warmup in sorted({(x.inputs.steps, x.inputs.warmup_steps) for x in mine}):
        some = [
            p
            for p in found
            if (p.ladder.inputs.steps, p.ladder.inputs.warmup_steps) == (steps, warmup)
        ]
        edge = np.median([p.ladder.edge for p in some])
        said = np.median([p.edge for p in some])
        error = np.median([abs(p.edge - p.ladder.edge) for p in some])
        lost = np.mean([float(p.ladder.excess_at(p.start)) for p in some])
        fails = np.mean([p.start > p.ladder.edge for p in some])
        widths = ", ".join(str(w) for w in sorted({p.ladder.inputs.width for p in some}))
        lines.append(
            f"| {steps} | {warmup} | {len(some)} | {widths} | {10**edge:.3g} | {10**said:.3g} | "
            f"{error:.2f} | {lost:.3f} | {fails:.0%} |"
        )
    lines += ["", *_pairs(found)]
    return "\n".join(lines)


def _pairs(found: Sequence[Prediction]) -> list[str]:
    """Say how far the edge moves between ladders that differ in one length only."""
    lines = []
    for field, other, what in (
        ("steps", "warmup_steps", "steps"),
        ("warmup_steps", "steps", "the warm-up"),
    ):
        pairs = [
            (a, b) if getattr(a.ladder.inputs, field) < getattr(b.ladder.inputs, field) else (b, a)
            for a, b in combinations(found, 2)
            if _same_model(a.ladder, b.ladder)
            and getattr(a.ladder.inputs, other) == getattr(b.ladder.inputs, other)
        ]
        if not pairs:
            continue
        moved = [b.ladder.edge - a.ladder.edge for a, b in pairs]
        said = [b.edge - a.edge for a, b in pairs]
        lines.append(
            f"From the smaller to the larger number of {what} ({len(pairs)} pairs) the edge moves "
            f"by {np.mean(moved):+.2f} decades (± {np.std(moved) / len(moved) ** 0.5:.2f}); the "
            f"model says {np.mean(said):+.2f}."
            if field == "steps"
            else f"From no warm-up to a warm-up of the same model ({len(pairs)} pairs) the edge "
            f"moves by {np.mean(moved):+.2f} decades (± {np.std(moved) / len(moved) ** 0.5:.2f}); "
            f"the model says {np.mean(said):+.2f}."
        )
    return lines


def _same_model(one: EdgeLadder, other: EdgeLadder) -> bool:
    return one.shape == other.shape and one.measured == other.measured


def warmups(ladders: Sequence[EdgeLadder], model: EdgeModel) -> str:
    """Judge runs that differ in the warm-up, which no fit sees; empty where there are none."""
    mine = [x for x in ladders if x.source == OPENLM]
    if not mine:
        return ""
    shapes, rate = len({x.shape for x in mine}), 10 ** mine[0].rates[0]
    lines = [
        f"### Warm-ups of {shapes} models at the rate {rate:g}, never fitted",
        "",
        "| warm-up | runs | failed | said: P(failed) | above *do not exceed* | nats above the best "
        "warm-up |",
        "|---|---|---|---|---|---|",
    ]
    for length in sorted({x.inputs.warmup_steps for x in mine}):
        some = [x for x in mine if x.inputs.warmup_steps == length]
        read = [model.predict(x.inputs, x.measured) for x in some]
        rates = [10 ** x.rates[0] for x in some]
        said = np.mean([r.failed(rate) for r, rate in zip(read, rates, strict=True)])
        above = np.mean(
            [rate > r.rate_at(DEFAULT_RISK) for r, rate in zip(read, rates, strict=True)]
        )
        lost = np.mean([x.excess[0] for x in some])
        failed = np.mean([x.failed[0] for x in some])
        lines.append(
            f"| {length} | {len(some)} | {failed:.0%} | {said:.0%} | {above:.0%} | {lost:.3f} |"
        )
    return "\n".join(lines)
