"""What kind of model it is: offsets of known families, and how unlike the data a run is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rksp.classifiers.artifacts import Decades
from rksp.classifiers.edge_inputs import ADAM_FAMILY, EdgeInputs, horizon_share

# Standard deviation a decade beyond the range of the data, in decades: how far a line may bend.
_BEYOND = 0.5
_KINDS = ("parallel", "branch_norm")
_IN_DECADES = ("width", "depth", "warmup", "batch_tokens", "large_batch")


# What widens a spread and is no column, in words.
WIDENED_BY = {
    "family": "the model's family",
    "kind": "the kind of its blocks, known from short runs alone",
    "objective": "the objective, which is not the next token",
    "optimizer": "the optimizer, known from few sources",
    "precision": "the 8-bit arithmetic, which no labelled run has",
    "few_tokens": "a batch of few tokens",
    "narrow": "the width, narrower than in any run so long",
}


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
        """Return what to add to the lines for the family."""
        known = self.families.get(inputs.family)
        share = inputs.kind_share
        return Amount(
            edge=share * known.mean.edge if known else 0.0,
            best=share * known.mean.best if known else 0.0,
        )

    def widenings(
        self,
        inputs: EdgeInputs,
        shown: Mapping[str, Amount],
        outside: Mapping[str, float],
    ) -> dict[str, Amount]:
        """Return every standard deviation to add between sources, by what it is for.

        Args:
            inputs: The model and its recipe.
            shown: What each column adds to the edge and to the best rate.
            outside: Columns beyond the data, with by how many decades.
        """
        found, share = {}, inputs.kind_share
        known = self.families.get(inputs.family)
        if known:
            found["family"] = _times(share, known.deviation)
        elif "family" in self.unlike:
            found["family"] = _times(share, self.unlike["family"])
        if share < 1:  # the part of the effect of a kind that only toy runs show
            mean = self.offset(inputs)
            kind = [shown[name] for name in _KINDS if name in shown]
            whole = Amount(
                edge=abs(mean.edge + sum(k.edge for k in kind)),
                best=abs(mean.best + sum(k.best for k in kind)),
            )
            found["kind"] = _times((1 - share) / share, whole)
        if not inputs.predicts_next and "task" in self.unlike:
            found["objective"] = _times(horizon_share(inputs.steps), self.unlike["task"])
        if inputs.optimizer not in ADAM_FAMILY and "optimizer" in self.unlike:
            found["optimizer"] = self.unlike["optimizer"]
        if inputs.in_fp8 and "optimizer" in self.unlike:  # as much as any part that runs differ in
            found["precision"] = self.unlike["optimizer"]
        beyond = {name: over for name, over in outside.items() if name in _IN_DECADES}
        beyond |= {"narrow": inputs.narrowness, "climbing": inputs.climbing}
        beyond |= {"few_tokens": inputs.lack_of_tokens}
        for name, decades in beyond.items():
            found[name] = Amount(edge=_BEYOND * decades, best=_BEYOND * decades)
        return {name: amount for name, amount in found.items() if max(amount.edge, amount.best) > 0}


def _times(share: float, amount: Amount) -> Amount:
    return Amount(edge=share * amount.edge, best=share * amount.best)
