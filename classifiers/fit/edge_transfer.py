"""Carry a rate tuned on a small model to a large one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from rksp.classifiers.edge_inputs import ADAM_FAMILY, EdgeInputs
from rksp.classifiers.edge_model import EdgeModel, EdgePredictor
from rksp.classifiers.fit.edge_fit import fit_edge_model
from rksp.classifiers.fit.edge_ladder import LAB, PUBLISHED, EdgeLadder

CONFIGURED = "rksp, configuration alone"
# Shifts of log10 of a rate from one model to another, that need no model.
RULES: dict[str, Callable[[EdgeInputs, EdgeInputs], float]] = {
    "same rate": lambda small, large: 0.0,
    "1/√width": lambda small, large: -0.5 * math.log10(large.width / small.width),
    "1/width": lambda small, large: -math.log10(large.width / small.width),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A rate carried from one model and recipe to another.

    Attributes:
        rate: For the large model.
        edge_shift: log10 of the large model's edge over the small one's.
        rules: What the rules beside it say.
        used: The measured columns that it rests on; empty if on the configurations alone.
    """

    rate: float
    edge_shift: float
    rules: dict[str, float]
    used: tuple[str, ...] = ()


def transfer(
    model: EdgePredictor,
    small: EdgeInputs,
    large: EdgeInputs,
    rate: float,
    measured: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {}),
) -> Transfer:
    """Keep the distance from the edge: multiply the rate by the ratio of the edges.

    Args:
        model: The model of the edge.
        small: The model and the recipe that the rate is tuned for.
        large: Those to carry it to.
        rate: The small one's.
        measured: Features of both at learning rate 1, by name (`rksp.spectra.features`). What only
            one of them has is not used: it would count as a difference between them.
    """
    of_small, of_large = _in_both(model, measured)
    shift = model.predict(large, of_large).log_edge - model.predict(small, of_small).log_edge
    return Transfer(
        rate=rate * 10**shift,
        edge_shift=shift,
        rules={name: rate * 10 ** rule(small, large) for name, rule in RULES.items()},
        used=tuple(of_small),
    )


def _in_both(
    model: EdgePredictor, measured: Iterable[Mapping[str, float]]
) -> list[dict[str, float]]:
    """Keep the measured columns that are finite in all."""
    measured = list(measured)
    names = [
        name
        for name in model.expected
        if all(math.isfinite(values.get(name, math.nan)) for values in measured)
    ]
    return [{name: values[name] for name in names} for values in measured]


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
        for ladders, values in zip((small, large), _in_both(model, measured), strict=True)
    ]
    return middles[1] - middles[0]
