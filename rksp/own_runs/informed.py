"""The model of the edge that has also seen a team's own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import Asking, EdgeModel
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.documents.own_runs import LearnedReport
from rksp.own_runs.labelled import learned_report
from rksp.own_runs.likelihoods import Likelihoods
from rksp.own_runs.observed import Observed, path_of
from rksp.own_runs.offsets import Tree
from rksp.own_runs.spreads import BEST_CARRIED, EDGE_CARRIED, LEVELS, Spreads
from rksp.own_runs.tuned import InformedTuning, Tuned

# What the data know little of and all models of a team share: it carries whole.
_OF_THE_RECIPE = ("climbing", "objective", "optimizer")
_USUAL_LOSS = 0.1  # nats below the best rate that the prior counts as, beside those of own ladders


@dataclass(frozen=True, kw_only=True)
class InformedModel(Asking):
    """The shipped model as the prior, and what a team's runs make of it.

    It answers as `EdgeModel` does.

    Attributes:
        prior: The shipped model.
        family: Of the models that are asked about, such as llama.
        seen: The team's ladders and single runs from random weights.
        tuned: Those from trained weights.
    """

    prior: EdgeModel
    family: str
    seen: Sequence[Observed] = field(repr=False)
    tuned: Sequence[Tuned] = field(default=(), repr=False)

    @cached_property
    def tuning(self) -> InformedTuning:
        """The model of fine-tuning that knows the team's runs from trained weights."""
        return InformedTuning(prior=load_fine_tuning_model(), seen=self.tuned)

    @cached_property
    def _said(self) -> dict[EdgeInputs, EdgeEstimate]:
        """What the prior says of every ladder from its configuration alone; alike ones share it."""
        return {inputs: self.prior.predict(inputs) for inputs in {one.inputs for one in self.seen}}

    @cached_property
    def _likelihoods(self) -> tuple[Likelihoods, Likelihoods]:
        """What all runs say of the edge, and all ladders of the best rate."""
        said = self._said
        ladders = [one for one in self.seen if one.is_ladder]
        edges = [said[one.inputs].edge for one in self.seen]
        bests = [said[one.inputs].best for one in ladders]
        return (
            Likelihoods.make(self.seen, edges, Observed.edge_likelihood),
            Likelihoods.make(ladders, bests, Observed.best_likelihood),
        )

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
        path = path_of(self.family, inputs)
        unlike = math.hypot(*(said.unlike.get(name, 0.0) for name in _OF_THE_RECIPE))
        learned = []
        for seen, rates, center, carried in (
            (self._likelihoods[0], said.edge, bare.log_edge, EDGE_CARRIED),
            (self._likelihoods[1], said.best, bare.log_best, BEST_CARRIED),
        ):
            spreads = Spreads.of(rates, inputs.optimizer, carried, unlike)
            likelihoods = seen.for_target(path, spreads, rates.location - center)
            learned.append(Tree(likelihoods, path, spreads).posterior())
        edge, best = learned
        covers = path[:3] in self._shown
        informed = replace(
            said,
            edge=edge.rates.moved(said.log_edge, 0.0),
            best=best.rates.moved(said.log_best, 0.0),
            outside={} if covers else said.outside,
            below=said.below * self._steepness,
        )
        level = max(edge.known, best.known)
        return replace(informed, learned=self._learned(said, informed, level, covers=covers))

    @cached_property
    def _steepness(self) -> float:
        """By how much more a rate below the best one costs this team than the prior says.

        It moves the start: on sources left out it takes a third of what starting there loses.
        """
        lost = expected = _USUAL_LOSS
        for one in self.seen:
            seen, said = one.lost_below(self._said[one.inputs])
            lost, expected = lost + seen, expected + said
        return lost / expected

    @cached_property
    def _shown(self) -> frozenset[tuple[str, ...]]:
        """The models whose edge some ladder shows."""
        return frozenset(one.path[:3] for one in self.seen if one.shows_edge)

    def _learned(
        self, said: EdgeEstimate, found: EdgeEstimate, level: int, *, covers: bool
    ) -> LearnedReport:
        return learned_report(self.seen, said, found, shares=LEVELS[level], covers=covers)
