"""How the spread of the shipped model divides over what runs can have in common.

Source: ladders of five public sources and of the lab's families, each left out of the fit once. The
mean error of a source or family spread by 0.2 to 0.4 decades, and by 0.3 to 0.5 between optimizers
that are no kin of Adam; within a source, one model's errors by 0.05 to 0.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rksp.classifiers.edge_model import EdgeEstimate
from rksp.optimizers.table import optimizer_spec

SEED = 0.06  # decades; what the same run with another seed moves its edge by
_BETWEEN = 0.7  # least share of a spread that is between sources, where the artifact states none
_BEST_BETWEEN = 0.65
# Shares of the variance between sources, outermost first: the team, the family of its model, the
# optimizer. Kin of Adam differ little from each other.
_KIN = (0.5, 0.4, 0.1)
_OTHERS = (0.3, 0.3, 0.4)
_MODEL = 0.5  # share of the variance within a source that one model keeps over its recipes
LEVELS = ("team", "family", "optimizer", "model", "ladder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Standard deviations in decades, one for each of `LEVELS`, and that between seeds."""

    levels: tuple[float, ...]
    seed: float = SEED

    @property
    def between(self) -> float:
        """What the levels above the model's make together."""
        return math.hypot(*self.levels[:3])

    @property
    def within(self) -> float:
        """What the model, its recipe and the seed make together."""
        return math.hypot(*self.levels[3:], self.seed)


def edge_spreads(estimate: EdgeEstimate, optimizer: str) -> Spreads:
    """Return the spreads of the edge."""
    total = estimate.edge_spread
    between = math.sqrt(max(total**2 - estimate.edge_noise**2, 0.0))
    return _divided(total, max(between, _BETWEEN * total), optimizer)


def best_spreads(estimate: EdgeEstimate, optimizer: str) -> Spreads:
    """Return the spreads of the best rate."""
    return _divided(estimate.best_spread, _BEST_BETWEEN * estimate.best_spread, optimizer)


def _divided(total: float, between: float, optimizer: str) -> Spreads:
    shares = _KIN if optimizer_spec(optimizer).is_adam_kin else _OTHERS
    within = max(total**2 - between**2 - SEED**2, SEED**2)
    outer = [between * math.sqrt(share) for share in shares]
    inner = [math.sqrt(within * share) for share in (_MODEL, 1 - _MODEL)]
    return Spreads(levels=(*outer, *inner))
