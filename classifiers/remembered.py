"""A predictor of the edge that answers for each run once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import EdgePredictor
from rksp.classifiers.line import Expected

if TYPE_CHECKING:  # loaded for trained weights alone
    from rksp.classifiers.fine_tuning.model import FineTuningPredictor

T = TypeVar("T")


class Remembered:
    """Remembers the estimates of another predictor: the cells of a grid share most of them.

    Args:
        prior: The predictor that is asked.
    """

    def __init__(self, prior: EdgePredictor) -> None:
        self._prior = prior
        self._known: dict[object, EdgeEstimate] = {}
        self._strange: dict[object, dict[str, float]] = {}
        self._made: dict[Hashable, Any] = {}

    @property
    def card(self) -> Mapping[str, Any]:
        """What the predictor was fitted on."""
        return self._prior.card

    @property
    def expected(self) -> Mapping[str, Expected]:
        """What the configuration lets every measured column be."""
        return self._prior.expected

    @property
    def tuning(self) -> FineTuningPredictor:
        """What answers for trained weights."""
        return self._prior.tuning

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distributions of the edge and of the best rate, as `EdgeModel.predict`."""
        asked = (inputs, tuple((measured or {}).items()))
        if asked not in self._known:
            self._known[asked] = self._prior.predict(inputs, measured)
        return self._known[asked]

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return what the predictor says."""
        asked = tuple(measured.items())
        if asked not in self._strange:
            self._strange[asked] = self._prior.strangeness(measured)
        return self._strange[asked]

    def once(self, asked: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` made when this was asked for the first time."""
        if asked not in self._made:
            self._made[asked] = make()
        return self._made[asked]
