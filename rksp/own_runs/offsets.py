"""Exact posteriors of nested offsets on one grid, and how the shipped model's spread divides.

The offset of a run is that of its team, plus one each of the model's family, the optimizer, the
model and the ladder, plus what the team's own slopes in width and batch make of its distance from
the target. What is seen of a ladder is a likelihood on the grid of its offset. A node gathers the
likelihoods of what stands below it by multiplication, and passes them up, or down, through a
convolution with the spread of the level in between (sum-product algorithm on a tree; Pearl, 1988).
The slopes are integrated over by Gauss-Hermite quadrature. Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

import numpy as np

from rksp.classifiers.rates import RateDistribution, RateMixture
from rksp.documents.own_runs import Level

SEED = 0.06  # decades by which another seed moves the edge of the same run
LEVELS: tuple[Level, ...] = get_args(Level)
# Shares of the variance between sources, outermost first: the team, the family of its model, the
# optimizer. Left out, families differ by up to 1.2 decades, other optimizers by 0.3 to 0.5, and
# Marin's kin of Adam by 0.3 among each other.
_SHARES = (0.3, 0.3, 0.4)
# Share of what differs between sources that carries from one model of a team to another; the rest
# is the model's own. Of 1 and 0.5, chosen on sources and families left out.
EDGE_CARRIED, BEST_CARRIED = 0.5, 1.0
_MODEL = 0.25  # share of the variance within a source that one model keeps over its recipes

STEP = 0.025  # decades
GRID = np.arange(-3.5, 3.5001, STEP)
TAIL = 1.6448536269514722  # standard deviations from the median of a normal to its 5 % quantile
_LEAST = 1e-300  # before a logarithm
_DIGITS = 3  # of a spread; kernels are kept by it
# Decades a decade: by how much a team's slopes in width and batch differ from the shipped ones.
# Ladders of the lab and of public teams left out show no difference between 0, 0.3 and 0.5.
_SLOPE = 0.3
_NODES = ((-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6))  # of a standard normal
SLOPES = _SLOPE * np.array([(wide, large) for wide, _ in _NODES for large, _ in _NODES])
_CHANCES = np.array([wide * large for _, wide in _NODES for _, large in _NODES])
Place = tuple[str, str, str, str]  # family, optimizer, model, ladder


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
    def of(cls, rates: RateMixture, carried: float, unlike: float = 0.0) -> Spreads:
        """Return how a distribution of the shipped model divides.

        Args:
            rates: The distribution.
            carried: `EDGE_CARRIED` or `BEST_CARRIED`.
            unlike: Standard deviation of what the data know little of in the recipe, such as a rate
                that rises to the end. It is in the distribution, and carries whole.
        """
        pairs = zip(rates.weights, rates.parts, strict=True)
        variance = sum(weight * part.between**2 for weight, part in pairs)
        own = (1 - carried) * max(variance - unlike**2, 0.0)
        return cls(
            weights=rates.weights,
            between=tuple(part.between for part in rates.parts),
            outer=tuple((1 - own / variance) * share for share in _SHARES),
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
        """Return the spread that is left where this many of `LEVELS` below the team's are known."""
        if known >= 4:
            return SEED
        return math.hypot(self.ladder, SEED) if known == 3 else self.within


def posterior(
    seen: Sequence[tuple[Place, np.ndarray]], path: Place, spreads: Spreads
) -> tuple[RateMixture, int]:
    """Return the distribution of the target's offset, exact for each spread between sources.

    It lies around an offset of 0 by the shipped model. With it comes how many levels below the
    team's the target shares with some run.

    Args:
        seen: (place, logarithm of the likelihood of the team's offset at the target, for each pair
            of `SLOPES` or for all alike, `[slopes or 1, grid]`) of every ladder.
        path: The place of the target.
        spreads: Of the target.
    """
    ladders: dict[tuple[str, ...], np.ndarray] = {}
    for place, logs in seen:
        ladders[place] = ladders.get(place, 0.0) + logs
    own = ladders.pop(path, None)
    # From here on, the target's own ladder and model stand apart from all others.
    models = _gathered(ladders, 3, spreads.ladder)
    beside = models.pop(path[:3], None)
    optimizers = _gathered(models, 2, spreads.model)
    known = 4 if own is not None else 3 if beside is not None else 0
    if not known:
        known = 2 if path[:2] in optimizers else int(any(p[0] == path[0] for p in optimizers))
    here = optimizers.pop(path[:2], np.zeros(1))
    found = []
    for between in spreads.between:
        team, family, optimizer = (between * math.sqrt(share) for share in spreads.outer)
        families = _gathered(optimizers, 1, optimizer)
        aside = families.pop(path[:1], np.zeros(1))
        logs = np.log(np.maximum(kernel(team)[len(GRID) // 2], _LEAST))[None]
        logs = logs + sum(_passed(one, family) for one in families.values())
        logs = _passed(_passed(logs, family) + aside, optimizer) + here
        if known >= 3:
            logs = _passed(logs, spreads.model) + (np.zeros(1) if beside is None else beside)
        if own is not None:
            logs = _passed(logs, spreads.ladder) + own
        found.append(np.broadcast_to(logs, (len(SLOPES), len(GRID))))
    mass = np.exp(np.array(found) - np.max(found))  # [between, slopes, grid]
    densities = (mass * _CHANCES[:, None]).sum(axis=1)
    weights = np.array(spreads.weights) * densities.sum(axis=1)
    within = spreads.remaining(known)
    parts = [_normal_of(density, within) for density in densities]
    chances = tuple((weights / weights.sum()).tolist())
    return RateMixture(weights=chances, parts=tuple(parts)), known


def _gathered(
    seen: Mapping[tuple[str, ...], np.ndarray], level: int, spread: float
) -> dict[tuple[str, ...], np.ndarray]:
    """Return the log-likelihood of each node: the sum over its children, widened by `spread`."""
    found: dict[tuple[str, ...], np.ndarray] = {}
    if seen:
        passed = _passed(np.array(list(seen.values())), spread)
        for place, logs in zip(seen, passed, strict=True):
            found[place[:level]] = found.get(place[:level], 0.0) + logs
    return found


def _passed(logs: np.ndarray, spread: float) -> np.ndarray:
    """Pass logarithms of likelihoods or densities one level up or down, `[…, grid]`."""
    top = logs.max(axis=-1, keepdims=True)
    found: np.ndarray = np.log(np.maximum(np.exp(logs - top) @ kernel(spread), _LEAST)) + top
    return found


def kernel(spread: float) -> np.ndarray:
    """Return the chance of each offset given that of the level above, `[grid, grid]`, symmetric."""
    return _kernel(round(spread, _DIGITS))


@lru_cache(maxsize=256)
def _kernel(spread: float) -> np.ndarray:
    distance = (GRID[:, None] - GRID[None, :]) / max(spread, STEP / 2)
    density: np.ndarray = np.exp(-0.5 * distance**2)
    density /= density[len(GRID) // 2].sum()
    return density


def _normal_of(density: np.ndarray, within: float) -> RateDistribution:
    """Return the normal of the location with the 5 %, 50 % and 95 % quantiles of a density."""
    summed = np.cumsum(density) / density.sum()
    low, middle, high = (float(np.interp(s, summed, GRID + STEP / 2)) for s in (0.05, 0.5, 0.95))
    return RateDistribution(location=middle, within=within, between=(high - low) / (2 * TAIL))
