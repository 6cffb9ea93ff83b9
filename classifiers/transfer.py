"""Carry a rate tuned on a small model to a large one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgePredictor

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
    """

    rate: float
    edge_shift: float
    rules: dict[str, float]


def transfer(model: EdgePredictor, small: EdgeInputs, large: EdgeInputs, rate: float) -> Transfer:
    """Keep the distance from the edge: multiply the rate by the ratio of the edges.

    Args:
        model: The model of the edge.
        small: The model and the recipe that the rate is tuned for.
        large: Those to carry it to.
        rate: The small one's.
    """
    shift = model.predict(large).log_edge - model.predict(small).log_edge
    return Transfer(
        rate=rate * 10**shift,
        edge_shift=shift,
        rules={name: rate * 10 ** rule(small, large) for name, rule in RULES.items()},
    )
