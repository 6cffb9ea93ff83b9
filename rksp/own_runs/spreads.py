"""How the spread of the shipped model divides over what runs can have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from rksp.classifiers.edge_inputs import ADAM_FAMILY
from rksp.classifiers.rates import RateMixture
from rksp.documents.own_runs import Level

SEED = 0.06  # decades by which another seed moves the edge of the same run
LEVELS: tuple[Level, ...] = get_args(Level)
# Shares of the variance between sources, outermost first: the team, the family of its model, the
# optimizer. Kin of Adam differ little from each other; with sources left out, the errors of other
# optimizers differ by 0.3 to 0.5 decades, those of families by up to 1.2.
_KIN = (0.5, 0.4, 0.1)
_OTHERS = (0.3, 0.3, 0.4)
# Share of what differs between sources that carries from one model of a team to another; the rest
# is the model's own. Of 1 and 0.5, chosen on sources and families left out.
EDGE_CARRIED, BEST_CARRIED = 0.5, 1.0
_MODEL = 0.25  # share of the variance within a source that one model keeps over its recipes


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Standard deviations in decades.

    Attributes:
        weights: Chances of the spreads between sources, which few sources leave uncertain.
        between: These spreads.
        outer: Shares of their variance: team, family, optimizer.
        within: What the model, its recipe and the seed make together.
        own: Variance between sources that is the model's own.
    """

    weights: tuple[float, ...]
    between: tuple[float, ...]
    outer: tuple[float, ...]
    within: float
    own: float = 0.0

    @classmethod
    def of(cls, rates: RateMixture, optimizer: str, carried: float, unlike: float = 0.0) -> Spreads:
        """Return how a distribution of the shipped model divides for an optimizer.

        Args:
            rates: The distribution.
            optimizer: Of the runs.
            carried: `EDGE_CARRIED` or `BEST_CARRIED`.
            unlike: Standard deviation of what the data know little of in the recipe, such as a rate
                that rises to the end. It is in the distribution, and carries whole.
        """
        shares = _KIN if optimizer in ADAM_FAMILY else _OTHERS
        pairs = zip(rates.weights, rates.parts, strict=True)
        variance = sum(weight * part.between**2 for weight, part in pairs)
        own = (1 - carried) * max(variance - unlike**2, 0.0)
        return cls(
            weights=rates.weights,
            between=tuple(part.between for part in rates.parts),
            outer=tuple((1 - own / variance) * share for share in shares),
            within=max(math.hypot(rates.within, math.sqrt(own)), 2 * SEED),
            own=own,
        )

    @property
    def model(self) -> float:
        """What one model keeps over its recipes."""
        return math.sqrt(self.own + _MODEL * (self.within**2 - self.own - SEED**2))

    @property
    def ladder(self) -> float:
        """What one model and recipe keep over seeds."""
        return math.sqrt((1 - _MODEL) * (self.within**2 - self.own - SEED**2))

    @property
    def noise(self) -> float:
        """The spread within a source."""
        return math.sqrt(self.within**2 - self.own)

    @property
    def usual(self) -> float:
        """The mean spread between sources."""
        pairs = zip(self.weights, self.between, strict=True)
        return math.sqrt(sum(weight * spread**2 for weight, spread in pairs))

    def remaining(self, known: int) -> float:
        """Return what stays noise where this many of `LEVELS` below the team's are known."""
        if known >= 4:
            return SEED
        return math.hypot(self.ladder, SEED) if known == 3 else self.within
