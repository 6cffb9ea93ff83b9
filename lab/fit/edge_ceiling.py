"""What a model that knew every edge would score: ladders that differ in the seed alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.fit.edge_ladder import LAB, EdgeLadder
from rksp.classifiers.metrics import auroc

_DRAWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """How far equal experiments with other seeds differ, in decades.

    Attributes:
        sets: Experiments that were repeated with another seed.
        errors: Distance of every result from the mean of its set, times √(n / (n − 1)), so that
            their mean square is the variance of one result. `[results]`.
    """

    sets: int
    errors: np.ndarray

    @classmethod
    def of(cls, repeated: Sequence[Sequence[float]]) -> Chance:
        """Return what the sets of two results or more say."""
        sets = [np.array(values) for values in repeated if len(values) > 1]
        errors = [(x - x.mean()) * np.sqrt(len(x) / (len(x) - 1)) for x in sets]
        return cls(sets=len(sets), errors=np.concatenate([np.empty(0), *errors]))

    @property
    def deviation(self) -> float:
        """Standard deviation of one result."""
        return float(np.sqrt(np.mean(self.errors**2)))


def ceiling_table(
    ladders: Sequence[EdgeLadder],
    judged: Sequence[EdgeLadder],
    repeats: Sequence[Sequence[str]],
    pairs: Sequence[tuple[str, str, str, str]],
) -> str:
    """Return what chance leaves to a model that knows the mean over seeds of every edge.

    Its AUROC is that of the ladders' edges, each moved by an error of a repeated ladder, drawn with
    repeats. The correlation of a pair's shift with its mean over seeds is at most the root of the
    share of the shifts' variance that is not chance (Spearman, 1904).

    Args:
        ladders: Of the lab.
        judged: Those whose predictions the table of ladders left out counts.
        repeats: Names of ladders that differ in the seed alone.
        pairs: (model, lever, name of the ladder without it, name of the ladder with it).
    """
    edges = {x.name: x.edge for x in ladders if x.source == LAB and x.has_edge}
    known = [[edges[name] for name in names if name in edges] for names in repeats]
    chance = Chance.of(known)
    edged = [x for x in judged if x.has_edge]
    if not chance.sets or not edged:
        return ""
    rng = np.random.default_rng(0)
    failed = np.concatenate([x.failed for x in edged])
    scores = []
    for _ in range(_DRAWS):
        moved = rng.choice(chance.errors, len(edged))
        margins = [x.rates - x.edge + by for x, by in zip(edged, moved, strict=True)]
        scores.append(auroc(failed, np.concatenate(margins)))
    lines = [
        "### What chance leaves: ladders of the lab that differ in the seed alone",
        "",
        f"{chance.sets} models and recipes were trained with two seeds or more. The edge of one "
        f"ladder has a standard deviation of {chance.deviation:.2f} decades around the mean of its "
        "seeds. So a model that knew every mean would miss a ladder's edge by "
        f"{np.median(np.abs(chance.errors)):.2f} decades in the median, and rank with an AUROC of "
        f"{np.mean(scores):.3f}.",
    ]
    if shifts := _shifts(edges, pairs):
        moves = Chance.of(list(shifts.values()))
        every = np.concatenate([np.array(of) for of in shifts.values()])
        if moves.sets:
            share = max(0.0, 1 - moves.deviation**2 / float(np.var(every)))
            lines[-1] += (
                f" The shift of one pair has a standard deviation of {moves.deviation:.2f} around "
                f"the mean of its seeds ({moves.sets} pairs), that of all pairs is "
                f"{np.std(every):.2f}: no model can be expected to reach a correlation above "
                f"{np.sqrt(share):.2f}."
            )
    return "\n".join(lines)


def _shifts(
    edges: Mapping[str, float], pairs: Sequence[tuple[str, str, str, str]]
) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for model, lever, plain, changed in pairs:
        if plain in edges and changed in edges:
            found[model, lever].append(edges[changed] - edges[plain])
    return found
