"""A model of the edge that knows of levers it was not fitted with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgePredictor
from rksp.classifiers.levers.effects import LeverSize
from rksp.classifiers.line import Expected
from rksp.ground.model import definite

if TYPE_CHECKING:  # loaded for trained weights alone
    from rksp.classifiers.fine_tuning.model import FineTuningPredictor

_EIGHTY = NormalDist().inv_cdf(0.9)  # standard deviations from the middle of an 80 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """By how much levers move the edge and the best rate, in decades, and how surely.

    Attributes:
        levers: Names of all levers that are applied.
        inputs: Fields of `EdgeInputs` that they set besides those of the recipe.
        edge, best: Of the rates, by those levers that the model has no column for.
        spread: Standard deviation of the shift of the edge in a family that was not measured.
    """

    levers: tuple[str, ...] = ()
    inputs: tuple[tuple[str, Any], ...] = ()
    edge: float = 0.0
    best: float = 0.0
    spread: float = 0.0

    @classmethod
    def of(
        cls, levers: Sequence[str], sizes: Sequence[LeverSize], inputs: Mapping[str, Any]
    ) -> Shift:
        """Return the shift of levers together, as if each acted by itself."""
        ends = [(size.low, size.high) for size in sizes]
        spreads = [(definite(high) - definite(low)) / (2 * _EIGHTY) for low, high in ends]
        return cls(
            levers=tuple(levers),
            inputs=tuple(sorted(inputs.items())),
            edge=sum(size.shift for size in sizes),
            best=sum(size.best or 0.0 for size in sizes),
            spread=math.hypot(*spreads),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedEdgeModel:
    """A model of the edge whose every estimate is moved by the same shift.

    Attributes:
        plain: The model without levers: the shipped one, or one that knows own runs.
        shift: What levers do.
    """

    plain: EdgePredictor
    shift: Shift

    @property
    def card(self) -> Mapping[str, Any]:
        """What the plain model was fitted on."""
        return self.plain.card

    @property
    def expected(self) -> Mapping[str, Expected]:
        """What the configuration predicts of the measured columns."""
        return self.plain.expected

    @property
    def tuning(self) -> FineTuningPredictor:
        """What answers for trained weights, which no lever moves."""
        return self.plain.tuning

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return what the plain model says."""
        return self.plain.strangeness(measured)

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the shifted distributions; how unsure the shift is widens that of the edge.

        Raises:
            ArtifactError: See `EdgeModel.predict`.
        """
        shift = self.shift
        found = self.plain.predict(replace(inputs, **dict(shift.inputs)), measured)
        return replace(
            found,
            edge=found.edge.moved(shift.edge, shift.spread),
            best=found.best.moved(shift.best, 0.0),
        )
