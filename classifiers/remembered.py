"""A predictor of the edge that answers for each run once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import Asking, EdgePredictor

T = TypeVar("T")


class Remembered(Asking):
    """Remembers the estimates of another predictor: the cells of a grid share most of them.

    Args:
        prior: The predictor that is asked.
    """

    def __init__(self, prior: EdgePredictor) -> None:
        self.prior = prior
        self._made: dict[Hashable, Any] = {}

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distributions of the edge and of the best rate, as `EdgeModel.predict`."""
        asked = (inputs, tuple((measured or {}).items()))
        return self.once(asked, lambda: self.prior.predict(inputs, measured))

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return what the predictor says."""
        return self.once(tuple(measured.items()), lambda: self.prior.strangeness(measured))

    def once(self, asked: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` made when this was asked for the first time."""
        if asked not in self._made:
            self._made[asked] = make()
        return self._made[asked]
