"""Lines in the columns of a model and its recipe, and what a kind of model adds to them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from rksp.classifiers.artifacts import Decades, Number
from rksp.classifiers.edge_inputs import ADAM_FAMILY, KIND, EdgeInputs, horizon_share
from rksp.classifiers.rates import Spread

# Standard deviation a decade beyond the range of the data, in decades: how far a line may bend.
_BEYOND = 0.5
KINDS = ("parallel", "branch_norm")
# Families of the lab's ladders by what their blocks do, as `Placement.design` has it.
ALIKE: Mapping[str, tuple[str, ...]] = {
    "none": ("zoo_no_norm",),
    "pre layer": ("gpt2", "zoo_pre_ln"),
    "pre rms": ("llama", "gemma", "mamba", "zoo_rmsnorm"),
    "pre rms qk": ("qwen3", "zoo_qk_norm"),
    "pre rms experts": ("mixtral",),
    "pre rms qk experts": ("qwen3_moe",),
    "pre layer experts": ("zoo_moe",),
    "pre layer parallel": ("gpt_neox", "phi", "zoo_parallel"),
    "post layer": ("opt_post", "zoo_post_ln", "zoo_deepnorm"),
    "branch rms": ("olmo2", "zoo_branch"),
    "sandwich rms": ("gemma2", "zoo_sandwich"),
    "pre rms scaled": ("granite",),
    "pre layer scaled": ("granite",),
}
_IN_DECADES = ("width", "depth", "warmup", "batch_tokens", "large_batch")


def alike(design: str) -> tuple[str, ...]:
    """Return the families of the kind that has most of a design's words, and none beside them."""
    said = set(design.split())
    fitting = [kind for kind in ALIKE if said.issuperset(kind.split())]
    return ALIKE[max(fitting, key=lambda kind: len(kind.split()))] if fitting else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A linear prediction of a logarithm of a rate.

    A measured column enters as its value less `expected[name]`, a line in the columns of the
    configuration, clipped to `reach[name]`; not measured, it contributes nothing.
    """

    intercept: Number
    weights: Mapping[str, Number]
    centers: Mapping[str, Number]

    def __post_init__(self) -> None:
        """Refuse a weight without its center."""
        if not self.weights.keys() <= self.centers.keys():
            raise ValueError("a weight has no center")

    def contributions(self, features: Mapping[str, float]) -> dict[str, float]:
        """Return what each column adds, in decades."""
        return {
            name: weight * (features[name] - self.centers[name])
            for name, weight in self.weights.items()
        }

    def at(self, features: Mapping[str, float]) -> float:
        """Return the logarithm of the rate."""
        return self.intercept + sum(self.contributions(features).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the configuration predicts of a measured column, and the largest difference."""

    line: Line
    reach: Number

    def surplus(self, value: float, features: Mapping[str, float]) -> float:
        """Return the value less the predicted one, clipped; 0 where it was not measured."""
        if not math.isfinite(value):
            return 0.0
        return float(np.clip(value - self.line.at(features), -self.reach, self.reach))


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """From which rate runs diverge, and do not just end above the best: a line beside the edge's.

    Attributes:
        line: log10 of that rate.
        families: What to add to it for a family of the lab, in decades: the posterior's mean.
        bare: Share of the failures that are divergence where no block normalizes.
        power: To which the odds are raised that a run which fails diverges, and does not end high:
            fitted to sources left out, which have their two endings in shares of their own.
        short, long: How far it is off for a new source, as in `edge_model.Horizon`.
    """

    line: Line
    families: Mapping[str, Decades]
    bare: Annotated[float, Field(ge=0, le=1)]
    power: Annotated[float, Field(gt=0, le=2)]
    short: Spread
    long: Spread

    def at(self, inputs: EdgeInputs, features: Mapping[str, float]) -> float:
        """Return log10 of the rate that is reached when runs begin to diverge."""
        return self.line.at(features) + inputs.kind_share * self.families.get(inputs.family, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """One amount of the edge and one of the best rate, in decades."""

    edge: Decades
    best: Decades


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyOffset:
    """The offset of a family from the columns: mean and standard deviation of its posterior."""

    mean: Amount
    deviation: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How far a kind of model lies from what the columns say, and how unlike the data it is.

    Attributes:
        families: Offsets of the families of the lab's ladders.
        unlike: Standard deviation that is added for each thing that the data do not know.
    """

    families: Mapping[str, FamilyOffset]
    unlike: Mapping[str, Amount]

    def offset(self, inputs: EdgeInputs) -> Amount:
        """Return what to add to the lines for the family, or for those alike."""
        names = (inputs.family,) if inputs.family in self.families else inputs.alike
        known = [self.families[name] for name in names if name in self.families]
        mean = _mean([(one.mean.edge, one.deviation.edge) for one in known])
        best = _mean([(one.mean.best, one.deviation.best) for one in known])
        return _times(inputs.kind_share, Amount(edge=mean, best=best))

    def widenings(
        self,
        inputs: EdgeInputs,
        kind: Amount,
        outside: Mapping[str, float],
    ) -> dict[str, Amount]:
        """Return every standard deviation to add between sources, by what it is for.

        Args:
            inputs: The model and its recipe.
            kind: What the kind of its blocks adds, the columns of `KINDS` and its family's offset.
            outside: Columns beyond the data, with by how many decades.
        """
        share, known = inputs.kind_share, self.families.get(inputs.family)
        optimizer, one = self.unlike.get("optimizer"), Amount(edge=1.0, best=1.0)
        objective = self.unlike.get("masked" if inputs.masks else "task")
        beyond = {name: over for name, over in outside.items() if name in _IN_DECADES}
        beyond |= {"climbing": inputs.climbing, "few_tokens": inputs.lack_of_tokens}
        said = {
            "family": (share, known.deviation if known else self.unlike.get("family")),
            # The part of the effect of a kind that only toy runs show.
            "kind": ((1 - share) / share, Amount(edge=abs(kind.edge), best=abs(kind.best))),
            "placement": (share * KIND * inputs.is_unread, one),
            "objective": (horizon_share(inputs.steps) * (not inputs.predicts_next), objective),
            "optimizer": (float(inputs.optimizer not in ADAM_FAMILY), optimizer),
            # As much as any part that runs differ in.
            "precision": (float(inputs.in_fp8), optimizer),
            **{name: (_BEYOND * decades, one) for name, decades in beyond.items()},
        }
        found = {name: _times(by, amount) for name, (by, amount) in said.items() if amount}
        return {name: amount for name, amount in found.items() if max(amount.edge, amount.best) > 0}


def _mean(known: Sequence[tuple[float, float]]) -> float:
    weights = [deviation**-2 for _, deviation in known]
    return sum(w * mean for w, (mean, _) in zip(weights, known, strict=True)) / (sum(weights) or 1)


def _times(share: float, amount: Amount) -> Amount:
    return Amount(edge=share * amount.edge, best=share * amount.best)
