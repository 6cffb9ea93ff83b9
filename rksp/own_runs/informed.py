"""The model of the edge that has also seen a team's own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgeEstimate, EdgeModel, horizon_share
from rksp.own_runs.observed import Observed, path_of
from rksp.own_runs.offsets import LAST, STEP, Path, kernel, normal_of, posterior, tree_of
from rksp.own_runs.spreads import Spreads, best_spreads, edge_spreads

_MOST_NOISE = 0.95  # of a spread: something about a source always stays unknown
_APART = 0.1  # decades between runs as short as the lab's and as long as real ones, for no reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """How far a team's runs move an answer.

    Attributes:
        edge_shift, best_shift: Decades.
        edge_before, edge_after: Standard deviation of the edge, in decades.
        best_before, best_after: The same of the best rate.
        knows: Deepest of `rksp.own_runs.spreads.LEVELS` that the target shares with a run.
    """

    edge_shift: float
    best_shift: float
    edge_before: float
    edge_after: float
    best_before: float
    best_after: float
    knows: int


@dataclass(frozen=True, kw_only=True)
class InformedModel:
    """The shipped model as the prior, and what a team's runs make of it.

    It answers as `EdgeModel` does.

    Attributes:
        prior: The shipped model.
        family: Of the models that are asked about, such as llama.
        seen: The team's ladders and single runs.
    """

    prior: EdgeModel
    family: str
    seen: Sequence[Observed] = field(repr=False)

    @property
    def card(self) -> Mapping[str, Any]:
        """What the prior was fitted on."""
        return self.prior.card

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return what the prior says."""
        return self.prior.strangeness(measured)

    @cached_property
    def _centers(self) -> list[EdgeEstimate]:
        """What the prior says of every ladder, from its configuration alone."""
        known: dict[EdgeInputs, EdgeEstimate] = {}
        for one in self.seen:
            if one.inputs not in known:
                known[one.inputs] = self.prior.predict(one.inputs)
        return [known[one.inputs] for one in self.seen]

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distributions of the edge and of the best rate, as `EdgeModel.predict`."""
        return self.learn(inputs, measured)[0]

    def learn(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> tuple[EdgeEstimate, Learned | None]:
        """Return what `predict` returns, and how far the runs moved it; None where there are none.

        What was measured of the target holds for its own ladders too, so that it is not counted
        twice.
        """
        said = self.prior.predict(inputs, measured)
        if not self.seen:
            return said, None
        bare = self.prior.predict(inputs) if measured else said
        surplus = said.log_edge - bare.log_edge, said.log_best - bare.log_best
        path = path_of(self.family, inputs)
        edge, best = edge_spreads(said, inputs.optimizer), best_spreads(said, inputs.optimizer)
        edges, bests = [], []
        for one, center in zip(self.seen, self._centers, strict=True):
            is_same = one.path[0] == path[0] and one.path[2] == path[2]
            of_edge, of_best = surplus if is_same else (0.0, 0.0)
            apart = abs(horizon_share(one.inputs.steps) - horizon_share(inputs.steps))
            noise = _extra_noise(edge_spreads(center, one.inputs.optimizer), edge, apart)
            found = one.edge_likelihood(center.log_edge + of_edge)
            edges.append((one.path, _blurred(found, noise)))
            if one.is_ladder:
                noise = _extra_noise(best_spreads(center, one.inputs.optimizer), best, apart)
                found = one.best_likelihood(center.log_best + of_best)
                bests.append((one.path, _blurred(found, noise)))
        return _informed(said, _answer(edges, path, edge), _answer(bests, path, best), edge)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """The posterior of one response.

    Attributes:
        shift, spread: Of its normal, in decades.
        known: Deepest level of the tree that the target shares with a run.
    """

    shift: float
    spread: float
    known: int


def _answer(seen: Sequence[tuple[Path, np.ndarray]], path: Path, spreads: Spreads) -> _Moved:
    found, known = posterior(tree_of(seen), path, spreads.levels)
    shift, spread = normal_of(found)
    return _Moved(shift=shift, spread=math.hypot(spread, spreads.seed), known=known)


def _informed(
    said: EdgeEstimate, edge: _Moved, best: _Moved, spreads: Spreads
) -> tuple[EdgeEstimate, Learned]:
    """Return the estimate with both posteriors in place.

    What nothing was seen of, the target's own model or its recipe, stays noise within the source.
    """
    unseen = [s for level, s in enumerate(spreads.levels) if level > max(edge.known, 2)]
    noise = math.hypot(*unseen, spreads.seed)
    learned = Learned(
        edge_shift=edge.shift,
        best_shift=best.shift,
        edge_before=said.edge_spread,
        edge_after=edge.spread,
        best_before=said.best_spread,
        best_after=best.spread,
        knows=max(edge.known, best.known),
    )
    informed = replace(
        said,
        log_edge=said.log_edge + edge.shift,
        edge_spread=edge.spread,
        edge_noise=min(noise, _MOST_NOISE * edge.spread),
        log_best=said.log_best + best.shift,
        best_spread=best.spread,
    )
    return informed, learned


def _extra_noise(own: Spreads, target: Spreads, apart: float) -> float:
    """Return what a ladder of another length adds: a larger error of its own, and another one."""
    more = max(own.between**2 - target.between**2, 0.0) + max(own.within**2 - target.within**2, 0.0)
    return math.sqrt(more + (_APART * apart) ** 2)


def _blurred(likelihood: np.ndarray, noise: float) -> np.ndarray:
    return likelihood if noise < STEP else likelihood @ kernel(noise, LAST).T
