"""Fit the model of the edge to ladders of the lab and of public sources."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace

import numpy as np

from lab.fit.censored import CensoredFit, fit_censored
from lab.fit.edge_families import divergence_offsets, family_offsets
from lab.fit.edge_ladder import BOUNDS, LAB, OPENLM, PAIRS, PUBLISHED, EdgeLadder
from lab.fit.edge_spreads import (
    HeldOut,
    Left,
    even_spread,
    node_weights,
    rounded,
    with_spreads,
)
from lab.fit.lapses import lapse_of
from rksp.classifiers.edge_inputs import (
    CONFIG_COLUMNS,
    LINES,
    LONG,
    MEASURED_COLUMNS,
    Column,
    EdgeInputs,
    LineName,
    config_features,
)
from rksp.classifiers.edge_model import EdgeModel, Horizon
from rksp.classifiers.lines import Divergence, Expected, Kinds, Line
from rksp.spectra.features import FEATURES

KNOTS = np.arange(-3.0, 2.0001, 0.25)  # decades, of the curves of lost nats
_SOURCE_LADDERS = 20.0  # a public source weighs as much as this many ladders of the lab
_SINGLE_RUNS = 50.0  # and all its runs that bound the edge from one side as much as this
# The lab's pairs, a few models over and over, weigh as much as this many of its ladders in the
# edge, which they tell best, and in the best rate.
_EDGE_PAIRS, _BEST_PAIRS = 200.0, 100.0
_SOURCE_OFFSETS = 0.3  # decades: deviation of the offsets of public sources (`forms.md`)
_BEST_WIDTH = 0.25  # decades on either side of the best rate of a ladder
_CHOSEN_WIDTH = 0.5  # and of the rate of a published recipe, which its authors chose
_UNTESTED = 300  # runs of which none lapsed, as long as lapses are not counted
_SMOOTHING = 1.0  # of the curves of lost nats: weight of squared second differences
_USUAL = (0.01, 0.99)  # quantiles between which a measured feature is nothing strange
_UNTOLD = {field.name: field.default for field in fields(EdgeInputs)}
_REACH = 2.0  # standard deviations that a measured column may lie from what is expected
# What was fitted by this process, with the ladders, so that none of their ids is given again:
# tables leave out the same sources.
Columns = tuple[Column, ...]
_FITTED: dict[Hashable, tuple[Sequence[EdgeLadder], EdgeModel]] = {}


def fit_edge_model(
    ladders: Sequence[EdgeLadder], measured: Columns = MEASURED_COLUMNS, *, spreads: bool = True
) -> EdgeModel:
    """Fit the lines, the curves of lost nats and the spreads.

    Runs of `OPENLM` are left out: they did not make the fit better, and so they can test it.

    Args:
        ladders: Of the lab and of public sources.
        measured: The columns of measurements that are used; none without measuring.
        spreads: Measure the spreads by leaving every source out once; otherwise they are those of
            the fit, which know nothing of new sources.
    """
    ladders = sorted(
        (x for x in ladders if x.source != OPENLM),
        key=lambda x: (x.source, x.name, x.changed, x.low, x.high),
    )
    asked = (tuple(map(id, ladders)), measured, spreads)
    if asked not in _FITTED:
        _FITTED[asked] = (ladders, _fitted(ladders, measured, spreads))
    return _FITTED[asked][1]


def _fitted(ladders: Sequence[EdgeLadder], measured: Columns, spreads: bool) -> EdgeModel:
    expected = _fit_expected(ladders, measured)
    columns = (*CONFIG_COLUMNS, *(c for c in measured if c.name in expected))
    fits = {of: _fit_line(ladders, columns, expected, of) for of in LINES}
    edge, best, divergence = (
        _line(fit, [c.name for c in columns if of in c.lines]) for of, fit in fits.items()
    )
    edge_fit, best_fit, divergence_fit = fits.values()
    horizon = lambda kind, chosen: Horizon(
        edge=even_spread(float(edge_fit.spreads[kind])),
        best=even_spread(float(best_fit.spreads[kind])),
        **_curves(chosen),
    )
    whole = [x for x in ladders if x.best is not None]
    long = [x for x in whole if x.inputs.steps >= LONG] or whole
    model = EdgeModel(
        edge=edge,
        best=best,
        divergence=Divergence(
            line=divergence,
            families={},
            bare=_bare(ladders),
            power=1.0,
            short=even_spread(float(divergence_fit.spreads[0])),
            long=even_spread(float(divergence_fit.spreads[-1])),
        ),
        expected=expected,
        short=horizon(0, [x for x in whole if x.source == LAB] or whole),
        long=horizon(len(edge_fit.spreads) - 1, long),
        knots=[float(k) for k in KNOTS],
        weights=node_weights(),
        lapse=lapse_of(0, _UNTESTED),
        sharpness=1.0,
        kinds=Kinds(families={}, unlike={}),
        ranges={},
        measured_ranges=_measured_ranges(whole),
        card=_card(ladders) if spreads else {},
    )
    known = [x for x in ladders if x.best is not None or x.source == PUBLISHED]
    model = replace(model, ranges=_ranges(model, known))
    noise = (float(edge_fit.spreads[0]), float(best_fit.spreads[0]))
    of_lab = [x for x in whole if x.source == LAB]
    families = family_offsets(model, of_lab, noise)
    begins = divergence_offsets(model, of_lab, float(divergence_fit.spreads[0]))
    model = replace(
        model,
        kinds=Kinds(families=families, unlike={}),
        divergence=replace(model.divergence, families=begins),
    )
    return with_spreads(model, list(held_out(ladders, measured))) if spreads else model


def held_out(
    ladders: Sequence[EdgeLadder], measured: Columns = MEASURED_COLUMNS
) -> Iterator[HeldOut]:
    """Yield every public source, lab family and lab task, and a model that saw nothing of it.

    Single runs of a source go with it.
    """
    keys: dict[Left, Callable[[EdgeLadder], str]] = {
        "source": lambda x: x.source if x.source not in (LAB, OPENLM) else "",
        "family": lambda x: x.inputs.family if x.source == LAB else "",
        "task": lambda x: x.task if x.source == LAB else "",
    }
    for left, key in keys.items():
        for name in sorted({key(x) for x in ladders} - {""}):
            seen = fit_edge_model([x for x in ladders if key(x) != name], measured, spreads=False)
            mine = [x for x in ladders if key(x) == name]
            yield HeldOut(left=left, name=name, seen=seen, ladders=mine)


def _fit_expected(ladders: Sequence[EdgeLadder], measured: Columns) -> dict[str, Expected]:
    """Fit a ridge line of every measured column in those of the configuration."""
    found = {}
    names = [c.name for c in CONFIG_COLUMNS]
    for column in measured:
        rows = [
            (list(config_features(x.inputs).values()), value)
            for x in ladders
            if math.isfinite(value := float(x.measured.get(column.name, math.nan)))
        ]
        if len(rows) < 10:
            continue
        every = list(config_features(ladders[0].inputs))
        x = np.array([row for row, _ in rows])[:, [every.index(name) for name in names]]
        y = np.array([value for _, value in rows])
        low, high = np.quantile(y, [0.02, 0.98])
        y = np.clip(y, low, high)
        centers = x.mean(axis=0)
        z = x - centers
        coefficients = np.linalg.solve(z.T @ z + np.eye(len(names)), z.T @ (y - y.mean()))
        left = y - y.mean() - z @ coefficients
        line = Line(
            intercept=rounded(y.mean()),
            weights=_by_name(names, coefficients),
            centers=_by_name(names, centers),
        )
        found[column.name] = Expected(line=line, reach=rounded(_REACH * left.std()))
    return found


def _fit_line(
    ladders: Sequence[EdgeLadder],
    columns: Columns,
    expected: Mapping[str, Expected],
    of: LineName,
) -> CensoredFit:
    columns = tuple(c for c in columns if of in c.lines)
    if of == "best":
        ladders = [x for x in ladders if x.best is not None or x.source == PUBLISHED]
        around = [
            (x.low, _CHOSEN_WIDTH) if x.best is None else (x.best, _BEST_WIDTH) for x in ladders
        ]
        low = np.array([middle - width for middle, width in around])
        high = np.array([middle + width for middle, width in around])
    else:
        ends = [(x.low, x.high) if of == "edge" else x.divergence for x in ladders]
        low, high = np.array(ends).T
    return fit_censored(
        np.array([_row(x, columns, expected) for x in ladders]),
        low,
        high,
        weights=ladder_weights(ladders, _BEST_PAIRS if of == "best" else _EDGE_PAIRS),
        kinds=np.array([0 if x.source == LAB else 1 for x in ladders]),
        groups=["" if x.source == LAB else x.source for x in ladders],
        signs=[c.sign for c in columns],
        priors=[c.prior for c in columns],
        means=[c.mean if of != "best" else 0.0 for c in columns],
        group_spread=_SOURCE_OFFSETS,
    )


def _row(ladder: EdgeLadder, columns: Columns, expected: Mapping[str, Expected]) -> list[float]:
    features = config_features(ladder.inputs)
    surplus = {
        name: e.surplus(float(ladder.measured.get(name, math.nan)), features)
        for name, e in expected.items()
    }
    known = {**features, **surplus}
    return [known.get(c.name, 0.0) for c in columns]


def ladder_weights(ladders: Sequence[EdgeLadder], pair_ladders: float = _EDGE_PAIRS) -> np.ndarray:
    """1 for a ladder of the lab; a public source counts as `_SOURCE_LADDERS` of them at most.

    The lab's pairs count as `pair_ladders` at most, and ladders of a source that are one experiment
    over and over as one. Every published recipe counts.
    """
    counts = Counter((x.source, bool(x.changed)) for x in ladders)
    alike = Counter((x.source, x.inputs) for x in ladders if not x.changed or x.changed in BOUNDS)
    pairs = sum(x.group == PAIRS for x in ladders)

    def weight(x: EdgeLadder) -> float:
        if x.source == LAB:
            return min(1.0, pair_ladders / pairs) if x.group == PAIRS else 1.0
        count = counts[x.source, bool(x.changed)]
        if x.source == PUBLISHED:
            return 1.0
        most = _SINGLE_RUNS if x.changed else _SOURCE_LADDERS
        return min(most, count) / count / max(1, alike[x.source, x.inputs])

    return np.array([weight(x) for x in ladders])


def _curves(ladders: Sequence[EdgeLadder]) -> dict[str, list[float]]:
    """Mean nats lost below the best rate and above it; every source counts alike."""
    counts = Counter(x.source for x in ladders)
    below, above = [], []
    for x in ladders:
        weight = 1 / counts[x.source]
        lower = x.rates <= x.best
        below.append((x.rates[lower] - x.best, x.excess[lower], weight))
        if x.has_edge:
            upper = x.rates >= x.best
            above.append((x.rates[upper] - x.edge, x.excess[upper], weight))
    falling = np.where(KNOTS >= 0, 0.0, _smooth(below))
    falling = np.maximum.accumulate(np.maximum(falling, 0)[::-1])[::-1]
    rising = np.where(KNOTS <= -2, 0.0, np.maximum(_smooth(above), 0))
    rising = np.maximum.accumulate(rising)
    return {"below": [rounded(v) for v in falling], "above": [rounded(v) for v in rising]}


def _smooth(parts: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> np.ndarray:
    """Heights of a piecewise linear curve at the knots, by penalized least squares."""
    if not parts:
        return np.zeros(len(KNOTS))
    x = np.concatenate([x for x, _, _ in parts])
    y = np.concatenate([y for _, y, _ in parts])
    w = np.concatenate([np.full(len(x), weight) for x, _, weight in parts])
    w = w * len(w) / w.sum()
    hats = np.stack([np.interp(x, KNOTS, row) for row in np.eye(len(KNOTS))], axis=1)
    bends = np.diff(np.eye(len(KNOTS)), 2, axis=0)
    normal = (hats * w[:, None]).T @ hats + _SMOOTHING * bends.T @ bends
    return np.linalg.solve(normal + 1e-6 * np.eye(len(KNOTS)), (hats * w[:, None]).T @ y)


def _line(fit: CensoredFit, names: Sequence[str]) -> Line:
    return Line(
        intercept=rounded(fit.intercept),
        weights=_by_name(names, fit.coefficients),
        centers=_by_name(names, fit.centers),
    )


def _ranges(model: EdgeModel, ladders: Sequence[EdgeLadder]) -> dict[str, tuple[float, float]]:
    rows = [model.features(x.inputs, x.measured) for x in ladders]
    return {
        name: (rounded(min(r[name] for r in rows)), rounded(max(r[name] for r in rows)))
        for name in model.best.weights
    }


def _bare(ladders: Sequence[EdgeLadder]) -> float:
    """Return the share of the failures without norms that diverged."""
    bare = [x for x in ladders if x.source == LAB and x.inputs.norm == "none"]
    failed = sum(int(x.failed.sum()) for x in bare)
    diverged = sum(int(x.diverged.sum()) for x in bare if x.diverged is not None)
    return rounded(diverged / failed) if failed else 0.0


def _measured_ranges(ladders: Sequence[EdgeLadder]) -> dict[str, tuple[float, float]]:
    found = {}
    for name in FEATURES:
        values = np.array([x.measured.get(name, math.nan) for x in ladders])
        values = values[np.isfinite(values)]
        if len(values):
            low, high = np.quantile(values, _USUAL)
            found[name] = (rounded(low), rounded(high))
    return found


def _card(ladders: Sequence[EdgeLadder]) -> dict[str, object]:
    """Describe what the model was fitted on, with a digest of it.

    A setting that no ladder has leaves the digest as it was.
    """
    sha = hashlib.sha256()
    for x in ladders:
        told = {
            name: value for name, value in asdict(x.inputs).items() if value != _UNTOLD.get(name)
        }
        row = [x.source, x.name, x.changed, x.low, x.high, x.best, told]
        sha.update(repr([*row, x.rates.tolist(), x.excess.tolist()]).encode())
    ladder_counts = Counter(x.source for x in ladders if not x.changed)
    run_counts = Counter(x.source for x in ladders if x.changed)
    changed: dict[str, list[EdgeLadder]] = {}
    for x in ladders:
        if x.best is None and "=" in x.changed:
            changed.setdefault(x.changed.partition("=")[0], []).append(x)
    steps = [x.inputs.steps for x in ladders]
    return {
        "ladders": dict(sorted(ladder_counts.items())),
        "single_runs": dict(sorted(run_counts.items())),
        "one_setting": {
            name: [len(runs), sum(bool(x.failed[0]) for x in runs)]
            for name, runs in sorted(changed.items())
        },
        "edges": sum(x.has_edge for x in ladders),
        "steps": [min(steps), max(steps)],
        "digest": sha.hexdigest(),
    }


def _by_name(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return {name: rounded(value) for name, value in zip(names, values, strict=True)}
