"""Lines in the columns of a model and its recipe: of the edge, of divergence, of measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from rksp.classifiers.artifacts import Decades, Number
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.rates import Spread


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
        short, long: How far it is off for a new source, as in `edge_model.Horizon`.
    """

    line: Line
    families: Mapping[str, Decades]
    bare: Annotated[float, Field(ge=0, le=1)]
    short: Spread
    long: Spread

    def least(self, inputs: EdgeInputs) -> float:
        """Return the least share of P(failed) that P(diverged) is."""
        return self.bare if inputs.norm == "none" else 0.0

    def at(self, inputs: EdgeInputs, features: Mapping[str, float]) -> float:
        """Return log10 of the rate that is reached when runs begin to diverge."""
        return self.line.at(features) + inputs.kind_share * self.families.get(inputs.family, 0.0)
