"""Exact posteriors of nested offsets on one grid.

The offset of a run is that of its team, plus one each of the model's family, the optimizer, the
model and the ladder. What is seen of a ladder is a likelihood on the grid of its offset. A node
gathers the likelihoods of what stands below it by multiplication, and passes them up, or down,
through a convolution with the spread of the level in between (sum-product algorithm on a tree;
Pearl, 1988). Nothing is drawn at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

STEP = 0.025  # decades
GRID = np.arange(-3.5, 3.5001, STEP)
_TAILED = 2  # levels, outermost first, whose offsets have heavy tails: families lie 1.2 decades off
_TAIL = 1.6448536269514722  # standard deviations from the median of a normal to its 5 % quantile
_T4 = _TAIL / 2.131846786326649  # scale of Student's t₄ with the same quantile
LAST = 4  # the level of a ladder
_TINY = 1e-300
_DIGITS = 3  # of a spread; kernels are kept by it
Path = tuple[str, ...]


@dataclass(slots=True)
class Node:
    """One place of the tree: what was seen of it, and of the nodes below it.

    Attributes:
        own: Likelihood on the grid of its offset, `[grid]`.
        below: Nodes of the next level by name.
    """

    own: np.ndarray = field(default_factory=lambda: np.ones(len(GRID)))
    below: dict[str, Node] = field(default_factory=dict)
    up: np.ndarray = field(default_factory=lambda: np.ones(len(GRID)))

    def gather(self, spreads: Sequence[float], level: int) -> np.ndarray:
        """Return the likelihood of the offset here, of all that was seen here and below.

        Args:
            spreads: Of every level.
            level: That of this node.
        """
        product = self.own
        if self.below:
            nodes = list(self.below.values())
            inner = np.array([node.gather(spreads, level + 1) for node in nodes])
            passed = _scaled(inner @ kernel(spreads[level + 1], level + 1).T)
            for node, up in zip(nodes, passed, strict=True):
                node.up = up
            together = np.log(np.maximum(passed, _TINY)).sum(axis=0)
            product = _scaled(product * np.exp(together - together.max()))
        return product


def tree_of(seen: Sequence[tuple[Path, np.ndarray]]) -> Node:
    """Return the root of the tree.

    Args:
        seen: (names from the family to the ladder, likelihood `[grid]`) of every ladder.
    """
    root = Node()
    for path, likelihood in seen:
        node = root
        for name in path:
            node = node.below.setdefault(name, Node())
        node.own = _scaled(node.own * likelihood)
    return root


def posterior(root: Node, path: Path, spreads: Sequence[float]) -> tuple[np.ndarray, int]:
    """Return the distribution of the offset at a path, and how many of its levels the tree knows.

    Args:
        root: From `tree_of`.
        path: Names from the family to the ladder; those that the tree lacks add their spread.
        spreads: Of every level, the team's first.
    """
    root.gather(spreads, 0)
    found = prior(spreads[0], 0) * root.own
    node: Node | None = root
    known = 0
    for level, name in enumerate(path, start=1):
        inner = {} if node is None else node.below
        for other, sibling in inner.items():
            if other != name:
                found = _scaled(found * sibling.up)
        found = _scaled(found @ kernel(spreads[level], level))
        node = inner.get(name)
        if node is not None:
            found = _scaled(found * node.own)
            known = level
    return found / found.sum(), known


def prior(spread: float, level: int) -> np.ndarray:
    """Return the density of one level's offset around 0, `[grid]`."""
    return kernel(spread, level)[len(GRID) // 2]


@lru_cache(maxsize=128)
def _kernel(spread: float, is_tailed: bool) -> np.ndarray:
    distance = (GRID[:, None] - GRID[None, :]) / max(spread, STEP / 2)
    if is_tailed:
        density = (1 + (distance / _T4) ** 2 / 4) ** -2.5
    else:
        density = np.exp(-0.5 * distance**2)
    return density / density.sum(axis=1, keepdims=True)


def kernel(spread: float, level: int) -> np.ndarray:
    """Return the chance of each offset given that of the level above, `[grid, grid]`."""
    return _kernel(round(spread, _DIGITS), level < _TAILED)


def _scaled(values: np.ndarray) -> np.ndarray:
    """Divide by the largest value of each row, since only ratios of likelihoods count."""
    return values / np.maximum(values.max(axis=-1, keepdims=True), _TINY)


def quantiles(density: np.ndarray, shares: Sequence[float]) -> list[float]:
    """Return the quantiles of a distribution on the grid."""
    summed = np.cumsum(density) / density.sum()
    return [float(np.interp(share, summed, GRID + STEP / 2)) for share in shares]


def normal_of(density: np.ndarray) -> tuple[float, float]:
    """Return median and spread of the normal with the 5 %, 50 % and 95 % quantiles of a density."""
    low, middle, high = quantiles(density, (0.05, 0.5, 0.95))
    return middle, (high - low) / (2 * _TAIL)
