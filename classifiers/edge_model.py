"""The model of the edge: from a recipe and a model to three rates and a probability."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from pydantic import Field

from rksp.classifiers.artifacts import SENSELESS, Artifact, Number, of_stored
from rksp.classifiers.edge_inputs import EdgeInputs, config_features, horizon_share
from rksp.classifiers.lines import KINDS, Amount, Divergence, Expected, Kinds, Line
from rksp.classifiers.rates import EdgeAndBest, Lapse, RateMixture, Spread, powered
from rksp.ground.errors import ArtifactError

if TYPE_CHECKING:  # what answers for trained weights is loaded for them alone
    from rksp.classifiers.fine_tuning.model import FineTuningPredictor

_Share = Annotated[float, Field(ge=0, le=1)]
T = TypeVar("T")
_MOST_LAPSES = 0.05  # of all runs; more would be no lapses
_End = Annotated[float, Field(gt=-5 * SENSELESS, lt=5 * SENSELESS)]  # of the range of a column


_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 21) for i in range(21)])
_TOGETHER = 256  # rates whose losses are found in one piece of memory, half a megabyte
_OFFSETS = np.arange(-2.5, 1.0001, 0.025)  # decades around the best rate that are looked at


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeEstimate(EdgeAndBest):
    """What the model says of one model and recipe; rates are nominal peak rates.

    Two estimates are equal only if they are one object.

    Attributes:
        diverging: Of the rate from which a run diverges, as a multiple of the median edge.
        least_diverged: Least share of P(failed) that P(diverged) is.
        diverging_power: To which the odds of that share are raised.
        outside: Columns beyond the range of the data, each with by how much, in decades.
        unlike: What widens the edge's spread between sources, each as a standard deviation in
            decades: a family, an optimizer or a column that the data know little of.
    """

    tail: ClassVar[float] = 0.05
    diverging: RateMixture
    least_diverged: float
    diverging_power: float
    outside: Mapping[str, float]
    unlike: Mapping[str, float]
    knots: np.ndarray
    below: np.ndarray
    above: np.ndarray
    _lost: dict[float, float] = field(default_factory=dict, init=False, repr=False)

    def diverged(self, rate: float) -> float:
        """Return the chance that a run at this rate diverges: one way to fail, so no more than it.

        A loss or a gradient that is not finite, or beyond the thresholds of `OutcomePolicy`.
        """
        failed = self.failed(rate)
        share = min(1.0, self.diverging.below(rate / 10**self.log_edge) / failed)
        return failed * max(powered(share, self.diverging_power), self.least_diverged)

    def expected_excess(self, rate: float) -> float:
        """Return the nats that a run at this rate is expected to lose against the best rate."""
        if rate not in self._lost:
            self._lost[rate] = float(self._excess(np.array([math.log10(rate)]))[0])
        return self._lost[rate]

    def lose_at(self, rates: Iterable[float]) -> None:
        """Find the expected losses of many rates together, in a tenth of the time."""
        asked = [rate for rate in dict.fromkeys(rates) if rate not in self._lost]
        for i in range(0, len(asked), _TOGETHER):
            some = asked[i : i + _TOGETHER]
            lost = self._excess(np.array([math.log10(rate) for rate in some]))
            self._lost.update(zip(some, lost.tolist(), strict=True))

    @cached_property
    def start_here(self) -> float:
        """The rate of the least expected loss."""
        rates = self.log_best + _OFFSETS
        return 10 ** float(rates[int(np.argmin(self._excess(rates)))])

    def _excess(self, log_rates: np.ndarray) -> np.ndarray:
        weights, locations, offsets = self._parts
        off = log_rates[:, None, None] - locations - offsets
        count = len(self.best.parts)
        lost = [
            np.interp(part, self.knots, curve).sum(axis=2)
            for part, curve in ((off[:, :count], self.below), (off[:, count:], self.above))
        ]
        means = np.concatenate(lost, axis=1) / len(_QUANTILES)
        # One after the other: `sum` adds in another order, and the last digit would differ.
        return np.cumsum(weights * means, axis=1)[:, -1]

    @cached_property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights, locations `[parts, 1]` and offsets `[parts, quantiles]`, of best and edge."""
        parts = (*self.best.parts, *self.edge.parts)
        return (
            np.array([*self.best.weights, *self.edge.weights]),
            np.array([[part.location] for part in parts]),
            np.array([part.spread * _QUANTILES for part in parts]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """What is learned of runs of one length.

    Attributes:
        edge, best: How far the predictions for a new source are off.
        below: Nats lost by a rate below the best one, at each of `EdgeModel.knots`.
        above: The same by a rate above the best one, at its distance from the edge.
    """

    edge: Spread
    best: Spread
    below: Sequence[Number]
    above: Sequence[Number]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeModel:
    """Lines of the edge, the best rate and divergence, and what is known of their errors.

    Attributes:
        edge, best: Of the highest rate that is reached.
        divergence: From which rate runs diverge.
        expected: Of every measured column.
        short, long: What holds up to `SHORT` steps and from `LONG` on; between, in proportion to
            the logarithm of the steps.
        knots: Decades, of the curves of `Horizon`.
        weights: Of the values of `Spread.between`; their sum is 1.
        lapse: Share of runs that fail, or pass, for what is not their rate.
        sharpness: Of P(failed) of usual runs (`rates.sharpened`); of others the share of edges
            below a rate is what comes true.
        kinds: What differs by family, and what widens the spread.
        ranges: Least and largest value of every column in the data.
        measured_ranges: 1st and 99th percentile of every measured feature over the ladders.
        card: What it was fitted on, and the errors of every rule of transfer.
    """

    edge: Line
    best: Line
    divergence: Divergence
    expected: Mapping[str, Expected]
    short: Horizon
    long: Horizon
    knots: Sequence[Number]
    weights: Sequence[_Share]
    lapse: Lapse
    sharpness: Annotated[float, Field(ge=1, le=5)]
    kinds: Kinds
    ranges: Mapping[str, tuple[_End, _End]]
    measured_ranges: Mapping[str, tuple[Number, Number]]
    card: Mapping[str, Any]

    def features(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return every column; a measured one is its difference from the predicted value."""
        features = config_features(inputs)
        measured = measured or {}
        return {**features} | {
            name: expected.surplus(measured.get(name, math.nan), features)
            for name, expected in self.expected.items()
        }

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distribution of the edge and of the best rate.

        Args:
            inputs: The shape and the recipe.
            measured: Features at learning rate 1 by name (`rksp.spectra.features`); None or NaN
                where nothing was measured.

        Raises:
            ArtifactError: A predicted rate is impossible, so the model is damaged.
        """
        features = self.features(inputs, measured)
        unreached = -math.log10(inputs.peak_share)
        offset = self.kinds.offset(inputs)
        log_edge = self.edge.at(features) + offset.edge
        log_best = self.best.at(features) + offset.best
        if not max(abs(log_edge), abs(log_best)) < SENSELESS:
            raise ArtifactError(
                f"The model of the edge predicts rates of 1e{log_edge:.0f} and 1e{log_best:.0f}; "
                "fit it again."
            )
        long = horizon_share(inputs.steps)
        outside = self._outside(features)
        shown_edge, shown_best = (
            sum(line.weights.get(name, 0.0) * features[name] for name in KINDS)
            for line in (self.edge, self.best)
        )
        kind = Amount(edge=offset.edge + shown_edge, best=offset.best + shown_best)
        unlike = self.kinds.widenings(inputs, kind, outside)
        edge = self.short.edge.mixed(self.long.edge, long).wider(x.edge for x in unlike.values())
        best = self.short.best.mixed(self.long.best, long).wider(x.best for x in unlike.values())
        begins = self.divergence.short.mixed(self.divergence.long, long)
        above = max(0.0, self.divergence.at(inputs, features) - log_edge)
        return EdgeEstimate(
            diverging=begins.wider(x.edge for x in unlike.values()).around(above, self.weights),
            edge=edge.around(log_edge + unreached, self.weights),
            best=best.around(log_best + unreached, self.weights),
            least_diverged=self.divergence.bare if inputs.norm == "none" else 0.0,
            diverging_power=self.divergence.power,
            lapse=self.lapse,
            sharpness=self.sharpness if inputs.is_usual else 1.0,
            contributions={
                name: decades
                for name, decades in self.edge.contributions(features).items()
                if features[name]  # what the run does not have is not named
            }
            | {"family": offset.edge},
            # No spread is wider for it: a narrower model has no lower X.
            outside=outside | ({"width": narrow} if (narrow := inputs.narrowness) > 0 else {}),
            unlike={name: amount.edge for name, amount in unlike.items()},
            knots=np.asarray(self.knots),
            below=(1 - long) * np.asarray(self.short.below) + long * np.asarray(self.long.below),
            above=(1 - long) * np.asarray(self.short.above) + long * np.asarray(self.long.above),
        )

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return by how many widths of its range each measured feature lies outside of it."""
        over = {
            name: max(low - measured[name], measured[name] - high) / (high - low)
            for name, (low, high) in self.measured_ranges.items()
            if name in measured and high > low
        }
        return {name: widths for name, widths in over.items() if widths > 0}

    @property
    def tuning(self) -> FineTuningPredictor:
        """The shipped model of fine-tuning."""
        from rksp.classifiers.fine_tuning.model import load_fine_tuning_model

        return load_fine_tuning_model()

    def _outside(self, features: Mapping[str, float]) -> dict[str, float]:
        ranges = self.ranges.items()
        over = {
            name: max(low - features[name], features[name] - high) for name, (low, high) in ranges
        }
        return {name: round(decades, 4) for name, decades in over.items() if decades > 1e-9}

    @classmethod
    def built(cls, stored: Mapping[str, Any]) -> EdgeModel:
        """Return the model of stored fields; a ValueError says which do not fit each other."""
        model = of_stored(cls, stored)
        if abs(sum(model.weights) - 1) > 1e-6:
            raise ValueError("the weights are no weights")
        spreads = [model.divergence.short, model.divergence.long]
        for part in (model.short, model.long):
            spreads += (part.edge, part.best)
            if not len(part.below) == len(part.above) == len(model.knots):
                raise ValueError("the losses do not stand at the knots")
        for spread in spreads:
            if len(spread.between) != len(model.weights):
                raise ValueError("the spreads do not stand at the weights")
        if not 0 < model.lapse.low <= model.lapse.share <= model.lapse.high < _MOST_LAPSES:
            raise ValueError("the share of lapses is none, or beyond all sense")
        for errors in model.card.get("transfer", {}).values():
            if not all(math.isfinite(errors[of]) for of in ("edge", "best")):
                raise ValueError("an error of a rule is none")
        return model


ARTIFACT = Artifact(
    noun="model of the edge",
    schema="rksp-edge-8",
    file="edge.json",
    command="python -m lab fit",
    build=EdgeModel.built,
)
load_edge_model = ARTIFACT.load


class Asking(ABC):
    """A predictor that asks another one, `prior`, and answers as it does but for the rates."""

    prior: EdgePredictor

    @abstractmethod
    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distributions of the edge and of the best rate, as `EdgeModel.predict`."""

    @property
    def card(self) -> Mapping[str, Any]:
        """What the prior was fitted on."""
        return self.prior.card

    @property
    def tuning(self) -> FineTuningPredictor:
        """What answers for trained weights."""
        return self.prior.tuning

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return what the prior says."""
        return self.prior.strangeness(measured)


# What answers for random initializations: the model, or what asks it.
EdgePredictor: TypeAlias = EdgeModel | Asking


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

    def once(self, asked: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` made when this was asked for the first time."""
        if asked not in self._made:
            self._made[asked] = make()
        made: T = self._made[asked]
        return made


CONFIGURED = "rksp, configuration alone"
# Shifts of log10 of a rate from one model to another that need no fitted one.
RULES: Mapping[str, Callable[[EdgeInputs, EdgeInputs], float]] = {
    "same rate": lambda small, large: 0.0,
    "1/√width": lambda small, large: -0.5 * math.log10(large.width / small.width),
    "1/width": lambda small, large: -math.log10(large.width / small.width),
}


def shifts(model: EdgePredictor, small: EdgeInputs, large: EdgeInputs) -> dict[str, float]:
    """Return log10 of the factor by which each rule carries a rate to a large model.

    The first, "rksp", keeps the distance from the edge: it is the shift of the edges.
    """
    edge = model.predict(large).log_edge - model.predict(small).log_edge
    return {"rksp": edge} | {name: rule(small, large) for name, rule in RULES.items()}
