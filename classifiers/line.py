"""Lines in the columns of a model and its recipe, and what they expect of a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rksp.classifiers.artifacts import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A linear prediction of a logarithm of a rate.

    A measured column enters as its value less `expected[name]`, a line in the columns of the
    configuration, clipped to `reach[name]`; not measured, it contributes nothing.
    """

    intercept: float
    weights: Mapping[str, float]
    centers: Mapping[str, float]

    def contributions(self, features: Mapping[str, float]) -> dict[str, float]:
        """Return what each column adds, in decades."""
        return {
            name: weight * (features[name] - self.centers[name])
            for name, weight in self.weights.items()
        }

    def at(self, features: Mapping[str, float]) -> float:
        """Return the logarithm of the rate."""
        return self.intercept + sum(self.contributions(features).values())

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Line:
        """Rebuild a line of an artifact.

        Raises:
            LookupError: A part is missing.
            ValueError: A number is damaged.
        """
        weights = {name: number(x) for name, x in stored["weights"].items()}
        centers = {name: number(stored["centers"][name]) for name in weights}
        return cls(intercept=number(stored["intercept"]), weights=weights, centers=centers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the configuration predicts of a measured column, and the largest difference."""

    line: Line
    reach: float

    def surplus(self, value: float, features: Mapping[str, float]) -> float:
        """Return the value less the predicted one, clipped; 0 where it was not measured."""
        if not math.isfinite(value):
            return 0.0
        return float(np.clip(value - self.line.at(features), -self.reach, self.reach))
