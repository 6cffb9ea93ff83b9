"""What a team's runs from trained weights say, and the model of fine-tuning that knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rksp.classifiers.fine_tuning.estimate import FineTuningEstimate
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.intervals import between_neighbours
from rksp.classifiers.fine_tuning.model import FineTuningModel
from rksp.documents.own_runs import LearnedReport, Level
from rksp.own_runs.labelled import LabelledRuns, learned_report
from rksp.own_runs.spreads import LEVELS

_TEAM = "own"  # the source that own ladders are revealed for
_FLAT = 0.01  # nats within which held-out losses of a short run are alike
# Chance that a ladder, or a run without another to compare with, says nothing.
MISTAKEN, _LONE_MISTAKEN = 0.05, 0.2
_MOST = 200  # ladders that are learned from, the nearest to the target first; each costs 5 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned(LabelledRuns):
    """Runs from trained weights.

    Attributes:
        inputs: Of the model of fine-tuning, without a source or a model.
    """

    inputs: FineTuningInputs

    @property
    def flat(self) -> float:
        """Nats within which the best of a ladder may be any of its rates."""
        return _FLAT

    @property
    def edge(self) -> tuple[float, float] | None:
        """log10 of the rates between which the edge lies; None where no run tells.

        They are the lowest failure above the best run, and the highest rate below it that passed.
        """
        best = self._best
        above = self.log_rates > (-math.inf if best is None else best)
        failing = self.log_rates[(self.failed == 1) & above]
        high = float(failing.min()) if len(failing) else math.inf
        passing = self.log_rates[(self.failed == 0) & (self.log_rates < high)]
        low = float(passing.max()) if len(passing) else -math.inf
        return (low, high) if math.isfinite(low) or math.isfinite(high) else None

    @property
    def best(self) -> tuple[float, float] | None:
        """log10 of the rates between which the best one lies; None where no ladder tells."""
        rates, losses = self.by_rate()
        known = np.isfinite(losses)
        if len(rates) < 2 or not known.any():
            return None
        flat = np.flatnonzero(known & (losses <= np.nanmin(losses) + self.flat))
        ends = [between_neighbours(rates.tolist(), int(n)) for n in (flat[0], flat[-1])]
        low, high = ends[0][0], ends[1][1]
        return (low, high) if math.isfinite(low) or math.isfinite(high) else None

    @property
    def _best(self) -> float | None:
        rates, losses = self.by_rate()
        return float(rates[int(np.nanargmin(losses))]) if np.isfinite(losses).any() else None


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
    def card(self) -> Mapping[str, Any]:
        """What the prior was fitted on."""
        return self.prior.card

    def measured(self) -> list[dict[str, Any]]:
        """Return what measuring adds, as the prior's card has it."""
        return self.prior.measured()

    @cached_property
    def _known(self) -> FineTuningModel:
        model = self.prior
        for one in self.seen[:_MOST]:
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
        return replace(found, learned=self._learned(inputs, said, found))

    def _learned(
        self, inputs: FineTuningInputs, said: FineTuningEstimate, found: FineTuningEstimate
    ) -> LearnedReport:
        seen = self.seen[:_MOST]
        covers = any(
            one.shows_edge and LEVELS.index(_shared(one.inputs, inputs)) >= _COVERS for one in seen
        )
        shares = max((_shared(one.inputs, inputs) for one in seen), key=LEVELS.index)
        return learned_report(seen, said, found, shares=shares, covers=covers)


_COVERS = LEVELS.index("model")


def _shared(one: FineTuningInputs, other: FineTuningInputs) -> Level:
    """Return the most that two runs have in common."""
    if one == other:
        return "ladder"
    if one.trained != other.trained or one.family != other.family:
        return "team"
    if one.optimizer != other.optimizer:
        return "family"
    alike = (one.parameters, one.method, one.objective) == (
        other.parameters,
        other.method,
        other.objective,
    )
    return "model" if alike else "optimizer"


def own_inputs(inputs: FineTuningInputs) -> FineTuningInputs:
    """Return the inputs as those of the team and of its checkpoint."""
    model = f"own {inputs.kind} {inputs.family} {inputs.parameters}"
    return replace(inputs, source=_TEAM, model=model)
