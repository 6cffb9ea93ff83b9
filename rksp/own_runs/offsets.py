"""Exact posteriors of nested offsets on one grid.

The offset of a run is that of its team, plus one each of the model's family, the optimizer, the
model and the ladder. What is seen of a ladder is a likelihood on the grid of its offset. A node
gathers the likelihoods of what stands below it by multiplication, and passes them up, or down,
through a convolution with the spread of the level in between (sum-product algorithm on a tree;
Pearl, 1988). Nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rksp.classifiers.rates import RateDistribution, RateMixture
from rksp.own_runs.spreads import Spreads

STEP = 0.025  # decades
GRID = np.arange(-3.5, 3.5001, STEP)
TAIL = 1.6448536269514722  # standard deviations from the median of a normal to its 5 % quantile
_LEAST = 1e-300  # before a logarithm
_DIGITS = 3  # of a spread; kernels are kept by it
Path = tuple[str, str, str, str]  # family, optimizer, model, ladder


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What is known of the target's offset.

    Attributes:
        rates: Its distribution, around an offset of 0 by the shipped model.
        known: How many levels below the team's the target shares with some run.
    """

    rates: RateMixture
    known: int


class Tree:
    """What was seen, by its place.

    Args:
        seen: (place, likelihood `[grid]`) of every ladder.
        path: The place of the target.
        spreads: Of the target.
    """

    def __init__(
        self, seen: Sequence[tuple[Path, np.ndarray]], path: Path, spreads: Spreads
    ) -> None:
        self._path, self._spreads = path, spreads
        ladders: dict[tuple[str, ...], np.ndarray] = {}
        for place, likelihood in seen:
            ladders[place] = ladders.get(place, 1.0) * likelihood
        self._own = ladders.pop(path, None)
        # From here on, the target's own ladder and model stand apart from all others.
        models = _gathered(ladders, 3, spreads.ladder)
        self._beside = models.pop(path[:3], None)
        self.known = 4 if self._own is not None else 3 if self._beside is not None else 0
        self._optimizers = _gathered(models, 2, spreads.model)
        if not self.known:
            places = self._optimizers.keys()
            self.known = 2 if path[:2] in places else int(any(p[0] == path[0] for p in places))

    def posterior(self) -> Posterior:
        """Return the distribution of the target's offset, exact for each spread between sources."""
        spreads = self._spreads
        within = spreads.remaining(self.known)
        parts, evidence = [], []
        for between in spreads.between:
            team, family, optimizer = (between * math.sqrt(share) for share in spreads.outer)
            density, log_evidence = self._for(team, family, optimizer)
            location, spread = _normal_of(density)
            evidence.append(log_evidence)
            parts.append(RateDistribution(location=location, within=within, between=spread))
        weights = np.array(spreads.weights) * np.exp(np.array(evidence) - max(evidence))
        weights /= weights.sum()
        rates = RateMixture(weights=tuple(weights.tolist()), parts=tuple(parts))
        return Posterior(rates=rates, known=self.known)

    def _for(self, team: float, family: float, optimizer: float) -> tuple[np.ndarray, float]:
        """Return the density of the target's offset, and the logarithm of the evidence."""
        path, spreads = self._path, self._spreads
        by_family: dict[str, np.ndarray] = {}
        here = np.zeros(len(GRID))  # logarithm of what the target's own optimizer saw elsewhere
        for place, seen in self._optimizers.items():
            if place == path[:2]:
                here = np.log(seen)
                continue
            up = np.log(np.maximum(seen @ kernel(optimizer), _LEAST))
            by_family[place[0]] = by_family.get(place[0], 0.0) + up
        aside = by_family.pop(path[0], np.zeros(len(GRID)))
        found, scale = np.log(np.maximum(kernel(team)[len(GRID) // 2], _LEAST)), 0.0
        for gathered in by_family.values():
            top = gathered.max()
            up = np.exp(gathered - top) @ kernel(family)
            found, scale = found + np.log(np.maximum(up, _LEAST)), scale + top
        found, scale = _down(found, scale, kernel(family), aside)
        found, scale = _down(found, scale, kernel(optimizer), here)
        if self._own is not None or self._beside is not None:
            beside = self._beside if self._beside is not None else np.ones(len(GRID))
            found, scale = _down(found, scale, kernel(spreads.model), np.log(beside))
        if self._own is not None:
            own = np.log(np.maximum(self._own, _LEAST))
            found, scale = _down(found, scale, kernel(spreads.ladder), own)
        density = np.exp(found - found.max())
        return density / density.sum(), float(scale + found.max() + math.log(density.sum()))


def _down(
    found: np.ndarray, scale: float, passed: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, float]:
    """Pass a density (a logarithm, and that of its scale) one level down, and add what was seen."""
    top = found.max()
    moved = np.exp(found - top) @ passed
    return np.log(np.maximum(moved, _LEAST)) + seen, scale + top


def _gathered(
    seen: dict[tuple[str, ...], np.ndarray], level: int, spread: float
) -> dict[tuple[str, ...], np.ndarray]:
    """Return the product of the likelihoods of each node's children, after their convolution."""
    if not seen:
        return {}
    passed = np.log(np.maximum(np.array(list(seen.values())) @ kernel(spread), _LEAST))
    found: dict[tuple[str, ...], np.ndarray] = {}
    for place, up in zip(seen, passed, strict=True):
        found[place[:level]] = found.get(place[:level], 0.0) + up
    return {place: np.maximum(np.exp(up - up.max()), _LEAST) for place, up in found.items()}


@lru_cache(maxsize=256)
def _kernel(spread: float) -> np.ndarray:
    distance = (GRID[:, None] - GRID[None, :]) / max(spread, STEP / 2)
    density = np.exp(-0.5 * distance**2)
    return density / density[len(GRID) // 2].sum()


def kernel(spread: float) -> np.ndarray:
    """Return the chance of each offset given that of the level above, `[grid, grid]`, symmetric."""
    return _kernel(round(spread, _DIGITS))


def _normal_of(density: np.ndarray) -> tuple[float, float]:
    """Return median and spread of the normal with the 5 %, 50 % and 95 % quantiles of a density."""
    summed = np.cumsum(density) / density.sum()
    low, middle, high = (float(np.interp(s, summed, GRID + STEP / 2)) for s in (0.05, 0.5, 0.95))
    return middle, (high - low) / (2 * TAIL)
