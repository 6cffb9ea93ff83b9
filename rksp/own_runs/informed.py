"""The model of the edge that has also seen a team's own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgeModel, Expected, horizon_share
from rksp.classifiers.rates import RateMixture
from rksp.documents.own_runs import LearnedReport
from rksp.own_runs.observed import Observed, path_of
from rksp.own_runs.offsets import STEP, Tree, kernel
from rksp.own_runs.spreads import LEVELS, Spreads

_APART = 0.1  # decades between runs as short as the lab's and as long as real ones, for no reason


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

    @property
    def expected(self) -> Mapping[str, Expected]:
        """What the prior's configuration lets measured columns be."""
        return self.prior.expected

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
        """Return the distributions of the edge and of the best rate, as `EdgeModel.predict`.

        What was measured of the target holds for its own ladders too, so that it is not counted
        twice. A ladder of the model itself that shows its edge covers it, whatever its shape.
        """
        said = self.prior.predict(inputs, measured)
        if not self.seen:
            return said
        bare = self.prior.predict(inputs) if measured else said
        surplus = said.log_edge - bare.log_edge, said.log_best - bare.log_best
        path = path_of(self.family, inputs)
        edge, best = (Spreads.of(rates, inputs.optimizer) for rates in (said.edge, said.best))
        share = horizon_share(inputs.steps)
        edges, bests = [], []
        for one, center in zip(self.seen, self._centers, strict=True):
            is_same = one.path[0] == path[0] and one.path[2] == path[2]
            of_edge, of_best = surplus if is_same else (0.0, 0.0)
            apart = abs(horizon_share(one.inputs.steps) - share)
            found = one.edge_likelihood(center.log_edge + of_edge)
            edges.append((one.path, _blurred(found, center.edge, edge, apart)))
            if one.is_ladder:
                found = one.best_likelihood(center.log_best + of_best)
                bests.append((one.path, _blurred(found, center.best, best, apart)))
        learned_edge, learned_best = (
            Tree(seen, path, spreads).posterior()
            for seen, spreads in ((edges, edge), (bests, best))
        )
        shown = {one.path[:3] for one in self.seen if one.shows_edge}
        informed = replace(
            said,
            edge=_moved(learned_edge.rates, said.log_edge),
            best=_moved(learned_best.rates, said.log_best),
            outside={} if path[:3] in shown else said.outside,
        )
        known = max(learned_edge.known, learned_best.known)
        return replace(informed, learned=self._learned(said, informed, known))

    def _learned(self, said: EdgeEstimate, found: EdgeEstimate, level: int) -> LearnedReport:
        return LearnedReport(
            runs=sum(int(np.isfinite(one.failed).sum()) for one in self.seen),
            ladders=sum(one.is_ladder for one in self.seen),
            shares=LEVELS[level],
            edge_shift=found.log_edge - said.log_edge,
            best_shift=found.log_best - said.log_best,
            edge_range_before=_range(said.edge),
            edge_range_after=_range(found.edge),
            best_range_before=_range(said.best),
            best_range_after=_range(found.best),
        )


def _moved(rates: RateMixture, location: float) -> RateMixture:
    """Return a distribution of offsets as one of rates around a location."""
    parts = [replace(part, location=part.location + location) for part in rates.parts]
    return replace(rates, parts=tuple(parts))


def _range(rates: RateMixture) -> float:
    """Return the factor between the ends of the 90 % range of a rate."""
    return rates.quantile(0.95) / rates.quantile(0.05)


def _blurred(likelihood: np.ndarray, own: RateMixture, target: Spreads, apart: float) -> np.ndarray:
    """Add what a ladder of another length adds: a larger error of its own, and another one."""
    mean = Spreads.of(own, "adamw")
    more = max(mean.usual**2 - target.usual**2, 0.0) + max(mean.within**2 - target.within**2, 0.0)
    noise = math.sqrt(more + (_APART * apart) ** 2)
    return likelihood if noise < STEP else likelihood @ kernel(noise)
