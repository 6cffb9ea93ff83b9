"""What several ladders say of how their errors change with width, length and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rksp.own_runs.offsets import GRID, Path
from rksp.own_runs.spreads import Spreads

_FLATTEST = 1e-3  # precision of a likelihood that says nothing, over that of the prior


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """How the error of a team's ladders changes with the distance from the target.

    Attributes:
        shifts: Decades by which each ladder's offset differs from the target's, `[ladders]`.
        unsure: Standard deviation of the target's offset that not knowing the slopes leaves.
    """

    shifts: np.ndarray
    unsure: float


def learned_slopes(
    values: np.ndarray,
    paths: Sequence[Path],
    target: Path,
    away: np.ndarray,
    extra: np.ndarray,
    spreads: Spreads,
    slopes: Sequence[float],
) -> Slopes:
    """Return what ladders say together of the slopes of their errors.

    The slopes are normal around 0 and one for the team. Of each likelihood its moments under the
    prior are taken; what follows is the algebra of normal distributions, exact for them.

    Args:
        values: Likelihoods of each ladder's own offset, `[ladders, grid]`.
        paths: Their places.
        target: That of the target.
        away: Decades of width, steps and batch from the target, `[ladders, 3]`.
        extra: Variance of each ladder beside that of the tree, `[ladders]`.
        spreads: Of the target.
        slopes: Standard deviations of the slopes, decades a decade, `[3]`.
    """
    kept = np.array(slopes) > 0
    away, prior = away[:, kept], np.array(slopes)[kept] ** 2
    levels = [spreads.usual**2 * share for share in spreads.outer]
    levels += [spreads.model**2, spreads.ladder**2]
    means, noise = _sites(values, sum(levels) + extra + away**2 @ prior)
    shared = np.array([[path[:n] == target[:n] for n in range(5)] for path in paths])
    columns = np.column_stack([means, shared @ np.array(levels), away])
    solved = _solved(columns, noise + extra, paths, levels)
    precision = np.diag(1 / prior) + away.T @ solved[:, 2:]
    covariance = np.linalg.inv(precision)
    found = covariance @ away.T @ solved[:, 0]
    weights = away.T @ solved[:, 1]
    return Slopes(
        shifts=away @ found, unsure=float(np.sqrt(max(weights @ covariance @ weights, 0.0)))
    )


def _sites(values: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the normal that moves the prior as each likelihood does."""
    density = values * np.exp(-0.5 * GRID**2 / variance[:, None])
    density /= density.sum(axis=1, keepdims=True)
    means = density @ GRID
    spread = density @ GRID**2 - means**2
    precision = np.maximum(1 / spread - 1 / variance, _FLATTEST / variance)
    return means / spread / precision, 1 / precision


def _solved(
    columns: np.ndarray, noise: np.ndarray, paths: Sequence[Path], levels: Sequence[float]
) -> np.ndarray:
    """Return columns times the inverse covariance of nested offsets, `[ladders, columns]`.

    From the leaves up, each level adds one variance to all that share a node: Sherman, Morrison.
    """
    found = np.column_stack([columns, np.ones(len(paths))]) / noise[:, None]
    for depth in reversed(range(5)):
        names: dict[tuple[str, ...], int] = {}
        of = np.array([names.setdefault(path[:depth], len(names)) for path in paths])
        sums = np.zeros((len(names), found.shape[1]))
        np.add.at(sums, of, found)
        share = levels[depth] / (1 + levels[depth] * sums[:, -1])
        found = found - found[:, -1:] * (share[:, None] * sums)[of]
    return found[:, :-1]
