"""The models of the edge and of fine-tuning that have also seen a team's own runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from rksp.classifiers.edge_inputs import CRITICAL_BATCH, TOY_BATCH, EdgeInputs
from rksp.classifiers.edge_model import Asking, EdgeEstimate, EdgeModel
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import (
    FineTuningEstimate,
    FineTuningModel,
    load_fine_tuning_model,
)
from rksp.classifiers.rates import RateMixture
from rksp.documents.own_runs import LearnedReport, Level
from rksp.own_runs.observed import MISTAKEN, LabelledRuns, Observed, Tuned, path_of
from rksp.own_runs.offsets import (
    BEST_CARRIED,
    EDGE_CARRIED,
    GRID,
    LEVELS,
    SLOPES,
    STEP,
    Place,
    Spreads,
    kernel,
    posterior,
)

# What the data know little of and all models of a team share: it carries whole to what has it too,
# and may be of any size, so that what has it says next to nothing of what has it not: `_ANY_SIZE`
# times its standard deviation. An optimizer is a level of the tree besides, and no `_EFFECTS`.
_EFFECTS = ("climbing", "few_tokens", "objective")
_CARRY_WHOLE = (*_EFFECTS, "optimizer")
_ANY_SIZE = 10.0
_USUAL_LOSS = 0.1  # nats below the best rate that the prior counts as, beside those of own ladders
_ROUNDED = 2  # digits of the noise that is added: ladders with the same share a convolution

_TEAM = "own"  # the source that ladders of fine-tuning are revealed for
_LONE_MISTAKEN = 0.2  # chance that a run without another to compare with says nothing
_MOST_TUNED = 200  # ladders that are learned from; each costs 5 ms


class _Response:
    """What every ladder says of one response, the edge or the best rate, read for every target."""

    def __init__(
        self,
        name: Literal["edge", "best"],
        seen: Sequence[Observed],
        said: Mapping[EdgeInputs, EdgeEstimate],
    ) -> None:
        self.name, self.seen = name, seen
        rates = {inputs: self._rates(one) for inputs, one in said.items()}
        spreads = {inputs: Spreads.of(one, 1.0) for inputs, one in rates.items()}
        # Of each ladder: what the prior says, the likelihoods of an offset from there, the spreads
        # of the prior between and within sources, and standard deviations of `_EFFECTS`.
        self.centers = np.array([rates[one.inputs].location for one in seen])
        values = map(self._likelihood, seen, self.centers)
        self.values = np.array(list(values)).reshape(len(seen), len(GRID))
        self.usual = np.array([spreads[one.inputs].usual for one in seen])
        self.within = np.array([spreads[one.inputs].noise for one in seen])
        effects = [_effects_of(said[one.inputs]) for one in seen]
        self.effects = np.array(effects).reshape(len(seen), len(_EFFECTS))

    def posterior(
        self, path: Place, inputs: EdgeInputs, said: EdgeEstimate, bare: EdgeEstimate
    ) -> tuple[RateMixture, int]:
        """Return the target's offset, and how many levels are known; see `offsets.posterior`.

        Args:
            path: Place of the target.
            inputs: Its recipe and shape.
            said: What the prior says of it.
            bare: The same from its configuration alone. What was measured of the target holds for
                the ladders of its own model too.
        """
        rates = self._rates(said)
        surplus = rates.location - self._rates(bare).location
        carried = EDGE_CARRIED if self.name == "edge" else BEST_CARRIED
        unlike = math.hypot(*(said.unlike.get(name, 0.0) for name in _CARRY_WHOLE))
        spreads = Spreads.of(rates, carried, unlike)
        paths = [one.path for one in self.seen]
        if not paths:
            return posterior([], path, spreads)
        values = self.values.copy()
        for n, place in enumerate(paths):
            if surplus and (place[0], place[2]) == (path[0], path[2]):
                values[n] = self._likelihood(self.seen[n], self.centers[n] + surplus)
        noise = np.round(self._noise(spreads, _effects_of(said)), _ROUNDED)
        for amount in np.unique(noise):
            if amount >= STEP:
                values[noise == amount] = values[noise == amount] @ kernel(float(amount))
        moved = np.array([self._design(one.inputs) for one in self.seen]) - self._design(inputs)
        steps = np.rint(moved @ SLOPES.T / STEP).astype(int)  # [ladders, slopes]
        places = np.clip(np.arange(len(GRID)) + steps[:, :, None], 0, len(GRID) - 1)
        logs = np.log(values)[np.arange(len(paths))[:, None, None], places]
        return posterior(list(zip(paths, logs, strict=True)), path, spreads)

    def _rates(self, said: EdgeEstimate) -> RateMixture:
        return said.edge if self.name == "edge" else said.best

    def _likelihood(self, one: Observed, center: float) -> np.ndarray:
        is_edge = self.name == "edge"
        return one.edge_likelihood(center) if is_edge else one.best_likelihood(center)

    def _design(self, inputs: EdgeInputs) -> tuple[float, float]:
        largest = TOY_BATCH if self.name == "edge" else CRITICAL_BATCH
        return math.log10(inputs.width), math.log10(min(inputs.batch_tokens, largest))

    def _noise(self, spreads: Spreads, effects: Sequence[float]) -> np.ndarray:
        between = np.maximum(self.usual**2 - spreads.usual**2, 0.0)
        within = np.maximum(self.within**2 - spreads.noise**2, 0.0)
        apart = ((_ANY_SIZE * (self.effects - effects)) ** 2).sum(axis=1)
        found: np.ndarray = np.sqrt(between + within + apart)
        return found.clip(max=np.ptp(GRID))


def _effects_of(said: EdgeEstimate) -> list[float]:
    return [said.unlike.get(name, 0.0) for name in _EFFECTS]


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
        return {inputs: self.prior.predict(inputs) for inputs in {one.inputs for one in self.seen}}

    @cached_property
    def _responses(self) -> tuple[_Response, _Response]:
        ladders = [one for one in self.seen if one.is_ladder]
        return _Response("edge", self.seen, self._said), _Response("best", ladders, self._said)

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distributions of the edge and of the best rate, as `EdgeModel.predict`.

        A ladder of the model itself that shows its edge covers it, whatever its shape.
        """
        said = self.prior.predict(inputs, measured)
        if not self.seen:
            return said
        bare = self.prior.predict(inputs) if measured else said
        path = path_of(self.family, inputs)
        (edge, near), (best, beside) = (
            one.posterior(path, inputs, said, bare) for one in self._responses
        )
        covers = any(one.shows_edge and one.path[:3] == path[:3] for one in self.seen)
        found = replace(
            said,
            edge=edge.moved(said.log_edge),
            best=best.moved(said.log_best),
            outside={} if covers else said.outside,
            below=said.below * self._steepness,
        )
        shares = LEVELS[max(near, beside)]
        learned = learned_report(self.seen, said, found, shares=shares, covers=covers)
        return replace(found, learned=learned)

    @cached_property
    def _steepness(self) -> float:
        """By how much more a rate below the best costs this team than the prior says, at least 1.

        It moves the start. What a failure costs has no scale of the team's own, so a flat ladder
        would only draw the start down, where Step Law's own runs lost 0.004 nats by it.
        """
        lost = expected = _USUAL_LOSS
        for one in self.seen:
            seen, said = one.lost_below(self._said[one.inputs])
            lost, expected = lost + seen, expected + said
        return max(1.0, lost / expected)


@dataclass(frozen=True, kw_only=True)
class InformedTuning:
    """The shipped model of fine-tuning as the prior, and what a team's runs make of it.

    A team's offset, and that of a checkpoint of it, have the spreads of the model's sources and
    checkpoints.

    Attributes:
        prior: The shipped model.
        seen: The team's ladders and single runs from trained weights.
    """

    prior: FineTuningModel
    seen: Sequence[Tuned]

    @property
    def card(self) -> Mapping[str, object]:
        """What the prior was fitted on."""
        return self.prior.card

    @cached_property
    def _known(self) -> FineTuningModel:
        model = self.prior
        for one in self.seen[:_MOST_TUNED]:
            model = model.reveal(
                own_inputs(one.inputs),
                best=one.best,
                edge=one.edge,
                mistaken=MISTAKEN if one.is_ladder else _LONE_MISTAKEN,
            )
        return model

    def predict(self, inputs: FineTuningInputs) -> FineTuningEstimate:
        """Return the distributions of the three rates, as `FineTuningModel.predict`.

        A ladder of the model itself, trained alike, that shows its edge covers it.
        """
        said = self.prior.predict(inputs)
        if not self.seen:
            return said
        found = self._known.predict(own_inputs(inputs))
        seen = self.seen[:_MOST_TUNED]
        shared = [LEVELS.index(_shared(one.inputs, inputs)) for one in seen]
        covers = any(
            one.shows_edge and level >= LEVELS.index("model")
            for one, level in zip(seen, shared, strict=True)
        )
        learned = learned_report(seen, said, found, shares=LEVELS[max(shared)], covers=covers)
        return replace(found, learned=learned)


def _shared(one: FineTuningInputs, other: FineTuningInputs) -> Level:
    if one == other:
        return "ladder"
    if one.trained != other.trained or one.family != other.family:
        return "team"
    if one.optimizer != other.optimizer:
        return "family"
    of_model = ("parameters", "method", "objective")
    is_same = all(getattr(one, name) == getattr(other, name) for name in of_model)
    return "model" if is_same else "optimizer"


def own_inputs(inputs: FineTuningInputs) -> FineTuningInputs:
    """Return the inputs as those of the team and of its checkpoint."""
    model = f"own {inputs.kind} {inputs.family} {inputs.parameters}"
    return replace(inputs, source=_TEAM, model=model)


Estimate = EdgeEstimate | FineTuningEstimate


def learned_report(
    seen: Sequence[LabelledRuns], said: Estimate, found: Estimate, *, shares: Level, covers: bool
) -> LearnedReport:
    """Return how far the runs moved the answer.

    Args:
        seen: The runs.
        said: The answer without them.
        found: The answer with them.
        shares: The most that one of them has in common with what is asked about.
        covers: A ladder of the model itself shows its edge.
    """
    return LearnedReport(
        runs=sum(int(np.isfinite(one.failed).sum()) for one in seen),
        ladders=sum(one.is_ladder for one in seen),
        shares=shares,
        covers=covers,
        edge_shift=found.log_edge - said.log_edge,
        best_shift=found.log_best - said.log_best,
        edge_range_before=_ninety_percent_range(said.edge),
        edge_range_after=_ninety_percent_range(found.edge),
        best_range_before=_ninety_percent_range(said.best),
        best_range_after=_ninety_percent_range(found.best),
    )


def _ninety_percent_range(rates: RateMixture) -> float:
    return rates.quantile(0.95) / rates.quantile(0.05)
