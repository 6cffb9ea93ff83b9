"""What the columns leave of each family of the lab: shrunk offsets with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lab.fit.censored import log_chance
from lab.fit.edge_ladder import LAB, EdgeLadder
from lab.fit.edge_spreads import BEST_HALF, rounded
from rksp.classifiers.edge_model import EdgeModel
from rksp.classifiers.lines import Amount, FamilyOffset
from rksp.ground.model import definite

_OFFSETS = np.arange(-2.5, 2.5001, 0.02)
_PRIOR = 0.4  # decades: standard deviation of the offsets of families, before the data


def family_offsets(
    model: EdgeModel, ladders: Sequence[EdgeLadder], noise: tuple[float, float]
) -> dict[str, FamilyOffset]:
    """Return the posterior of every family's offset, given the lines, which are fitted before.

    So an offset is only what no column explains, and one ladder does not shout.

    Args:
        model: Whose lines are used.
        ladders: Of the lab.
        noise: Standard deviation of a ladder's edge and of its best rate around the lines.
    """
    found: dict[str, FamilyOffset] = {}
    for family in _known(ladders):
        edges, bests = [], []
        for x in (x for x in ladders if x.inputs.family == family and x.source == LAB):
            columns, share = model.features(x.inputs, x.measured), x.inputs.kind_share
            said = model.edge.at(columns), model.best.at(columns)
            edges.append(((x.low - said[0]) / share, (x.high - said[0]) / share))
            off = definite(x.best) - said[1]
            bests.append(((off - BEST_HALF) / share, (off + BEST_HALF) / share))
        mean, deviation = zip(
            *(_posterior(np.array(r), n) for r, n in zip((edges, bests), noise, strict=True)),
            strict=True,
        )
        found[family] = FamilyOffset(
            mean=Amount(edge=mean[0], best=mean[1]),
            deviation=Amount(edge=deviation[0], best=deviation[1]),
        )
    return found


def divergence_offsets(
    model: EdgeModel, ladders: Sequence[EdgeLadder], noise: float
) -> dict[str, float]:
    """Return the same for the rate from which runs diverge: the mean of every family's offset.

    Args:
        model: Whose line is used.
        ladders: Of the lab.
        noise: Standard deviation of a ladder's around the line.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _known(ladders)}
    for x in (x for x in ladders if x.inputs.family in found):
        said = model.divergence.at(x.inputs, model.features(x.inputs, x.measured))
        low, high = ((end - said) / x.inputs.kind_share for end in x.divergence)
        found[x.inputs.family].append((low, high))
    return {name: _posterior(np.array(found[name]), noise)[0] for name in found}


def _known(ladders: Sequence[EdgeLadder]) -> list[str]:
    """Return the families that have an offset: one seed would tell its own noise."""
    seeds: dict[str, set[int]] = {}
    for x in ladders:
        seeds.setdefault(x.inputs.family, set()).add(x.seed)
    return sorted(name for name, of in seeds.items() if name and len(of) > 1)


def _posterior(ranges: np.ndarray, noise: float) -> tuple[float, float]:
    """Return the mean and the standard deviation of an offset of which `[ladders, 2]` are known."""
    low, high = ranges[:, :1], ranges[:, 1:]
    log_p = log_chance((low - _OFFSETS) / noise, (high - _OFFSETS) / noise).sum(axis=0)
    log_p -= 0.5 * (_OFFSETS / _PRIOR) ** 2
    chance = np.exp(log_p - log_p.max())
    chance /= chance.sum()
    mean = float(chance @ _OFFSETS)
    return rounded(mean), rounded(math.sqrt(chance @ (_OFFSETS - mean) ** 2))
