"""Carries a rate tuned on a small model to a large one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from rksp.classifiers.edge_fit import fit_edge_model
from rksp.classifiers.edge_inputs import ADAM_FAMILY, EdgeInputs
from rksp.classifiers.edge_ladder import LAB, PUBLISHED, EdgeLadder
from rksp.classifiers.edge_model import EdgeModel

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
    """

    rate: float
    edge_shift: float
    rules: dict[str, float]


def transfer(model: EdgeModel, small: EdgeInputs, large: EdgeInputs, rate: float) -> Transfer:
    """Keep the distance from the edge: multiply the rate by the ratio of the edges."""
    shift = model.predict(large).log_edge - model.predict(small).log_edge
    return Transfer(
        rate=rate * 10**shift,
        edge_shift=shift,
        rules={name: rate * 10 ** rule(small, large) for name, rule in RULES.items()},
    )


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
    did not see the source.

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
    rules = ["rksp", *RULES]
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
    log_edge = lambda x: model.predict(x.inputs).log_edge
    shifts = {"rksp": middle(log_edge, large) - middle(log_edge, small)}
    shifts |= {name: rule(small[0].inputs, large[0].inputs) for name, rule in RULES.items()}
    for name, shift in shifts.items():
        edges, bests = found.setdefault(name, ([], []))
        edges.append(abs(shift - edge))
        bests.append(abs(shift - best))
