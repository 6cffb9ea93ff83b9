"""How far carried rates miss, between public shapes that were left out of the fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import LAB, PUBLISHED, EdgeLadder
from rksp.classifiers.edge_inputs import ADAM_FAMILY
from rksp.classifiers.edge_model import CONFIGURED, RULES, EdgeModel


def with_transfer_errors(model: EdgeModel, ladders: Sequence[EdgeLadder]) -> EdgeModel:
    """Return the model with the errors of every rule in its card, as `transfer_errors` has them."""
    errors = {
        name: {"edge": round(edge, 2), "best": round(best, 2)}
        for name, edge, best in transfer_errors(ladders)
    }
    return replace(model, card={**model.card, "transfer": errors})


def transfer_errors(ladders: Sequence[EdgeLadder]) -> list[tuple[str, float, float]]:
    """Measure the errors of a shift between public shapes; ours is called "rksp".

    Every pair of shapes of one source counts once, with the medians over their ladders; the model
    did not see the source, and reads what was measured of both shapes or of none.

    Args:
        ladders: Of the lab and of public sources.

    Returns:
        (rule, median error of the shift of the edge, of the best rate), in decades.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    public = [x for x in ladders if x.source not in (LAB, PUBLISHED) and not x.changed]
    for source in sorted({x.source for x in public}):
        mine = [x for x in public if x.source == source and x.inputs.optimizer in ADAM_FAMILY]
        mine = [x for x in mine if x.has_edge]
        shapes = sorted({x.shape for x in mine})
        if len(shapes) < 2:
            continue
        seen = fit_edge_model([x for x in ladders if x.source != source], spreads=False)
        by_shape = {shape: [x for x in mine if x.shape == shape] for shape in shapes}
        for one, other in combinations(shapes, 2):
            _compare(found, seen, by_shape[one], by_shape[other])
    rules = ["rksp", CONFIGURED, *RULES]
    return [
        (name, float(np.median(found[name][0])), float(np.median(found[name][1])))
        for name in rules
        if name in found
    ]


def _compare(
    found: dict[str, tuple[list[float], list[float]]],
    model: EdgeModel,
    small: Sequence[EdgeLadder],
    large: Sequence[EdgeLadder],
) -> None:
    middle = lambda value, ladders: float(np.median([value(x) for x in ladders]))
    edge = middle(lambda x: x.edge, large) - middle(lambda x: x.edge, small)
    best = middle(lambda x: x.best, large) - middle(lambda x: x.best, small)
    shifts = {
        CONFIGURED: _shift(model, small, large, ({}, {})),
        "rksp": _shift(model, small, large, (small[0].measured, large[0].measured)),
    }
    shifts |= {name: rule(small[0].inputs, large[0].inputs) for name, rule in RULES.items()}
    for name, shift in shifts.items():
        edges, bests = found.setdefault(name, ([], []))
        edges.append(abs(shift - edge))
        bests.append(abs(shift - best))


def _shift(
    model: EdgeModel,
    small: Sequence[EdgeLadder],
    large: Sequence[EdgeLadder],
    measured: tuple[Mapping[str, float], Mapping[str, float]],
) -> float:
    """Return the shift between the medians over the ladders of two shapes."""
    middles = [
        float(np.median([model.predict(x.inputs, values).log_edge for x in ladders]))
        for ladders, values in zip((small, large), in_both(model, measured), strict=True)
    ]
    return middles[1] - middles[0]


def in_both(model: EdgeModel, measured: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
    """Keep the measured columns that are finite in all."""
    measured = list(measured)
    names = [
        name
        for name in model.expected
        if all(math.isfinite(values.get(name, math.nan)) for values in measured)
    ]
    return [{name: values[name] for name in names} for values in measured]
