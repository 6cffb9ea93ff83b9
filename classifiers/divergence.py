"""From which rate runs diverge, beside the edge, from which they fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rksp.classifiers.artifacts import number
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.line import Line
from rksp.classifiers.rates import SENSELESS, Spread


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
    families: Mapping[str, float]
    bare: float
    short: Spread
    long: Spread

    def least(self, inputs: EdgeInputs) -> float:
        """Return the least share of P(failed) that P(diverged) is."""
        return self.bare if inputs.norm == "none" else 0.0

    def at(self, inputs: EdgeInputs, features: Mapping[str, float]) -> float:
        """Return log10 of the rate that is reached when runs begin to diverge."""
        return self.line.at(features) + inputs.kind_share * self.families.get(inputs.family, 0.0)

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any], weights: int) -> Divergence:
        """Rebuild it from an artifact whose spreads have so many values.

        Raises:
            LookupError: A part is missing.
            ValueError: A number is damaged.
        """
        families = {name: number(x) for name, x in stored["families"].items()}
        if not all(abs(x) < SENSELESS for x in families.values()):
            raise ValueError("an offset is beyond all sense")
        bare = number(stored["bare"])
        if not 0 <= bare <= 1:
            raise ValueError("a share is none")
        return cls(
            line=Line.of_stored(stored["line"]),
            families=families,
            bare=bare,
            short=Spread.of_stored(stored["short"], weights),
            long=Spread.of_stored(stored["long"], weights),
        )
