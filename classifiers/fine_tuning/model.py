"""The model of fine-tuning: a normal posterior of coefficients, read and used without numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from rksp.classifiers.artifacts import SENSELESS, Artifact, Deviation, Number, of_stored
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs, Term, terms
from rksp.classifiers.rates import EdgeAndBest, Lapse, RateDistribution, RateMixture
from rksp.ground.errors import ArtifactError, InputError

SHARED = "shared"  # terms that move every rate of a run alike
RESPONSES = ("best", "edge", "forgetting")
_LEAST_VARIANCE = 1e-6  # rounding may leave a variance below zero
_FEW_EDGES = 0.05  # share that lies below a rate to start with
_FEW = 5  # ladders, below which nothing is said of what is forgotten
_ONLY_FITTED = ("model",)  # a checkpoint's own offset; without a name it is part of the spread

_ROOT = math.sqrt(2)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_RANGE = 4.0  # decades over which an interval that says nothing may lie
_FAR_OUT = 8.0  # standard deviations, beyond which a tail has no digits left


@dataclass(frozen=True, kw_only=True)
class FineTuningEstimate(EdgeAndBest):
    """What the model says; rates are peak rates.

    Attributes:
        forgetting: Of the rate from which a tenth of the untouched abilities is lost; None where
            no data show it.
        unseen: (factor, level) of every name that the data do not hold.
        usual: The usual rate where no data beat it, else None; `start_here` is then that rate.
    """

    tail: ClassVar[float] = 0.1
    forgetting: RateMixture | None
    unseen: tuple[tuple[str, str], ...]
    usual: float | None = None

    @property
    def start_here(self) -> float:
        """The usual or the median best rate, or a lower one that few edges lie below."""
        usual = self.best.quantile(0.5) if self.usual is None else self.usual
        return min(usual, self.edge.quantile(_FEW_EDGES))


class FineTuningPredictor(Protocol):
    """What answers for trained weights: the fitted model, or one that knows own runs too."""

    @property
    def card(self) -> Mapping[str, Any]:
        """What it was fitted on."""

    def predict(self, inputs: FineTuningInputs) -> FineTuningEstimate:
        """Return the distributions of the best rate, of the edge, and of what is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningModel:
    """A hierarchical linear model of three logarithms of a rate.

    Each logarithm is a sum of `shared` terms and of its own. Coefficients of one factor are normal
    around a stated mean, mostly 0, with a stated spread; `mean` and `covariance` are the
    posterior. A level that the data do not hold counts with its stated mean and spread.

    Attributes:
        spreads: Prior standard deviation by "block: factor level", "block: factor (trained)" or
            "block: factor", whichever is there first.
        stated: Prior means other than 0, by term.
        mean: Of each coefficient, by term.
        covariance: Lower triangle, rows in the order of `mean`.
        noise: Standard deviation of each response within a source, in decades.
        lapse: Chance that a run ends against its edge.
        shows: How many rows of each response stand behind each "factor level" that is a name.
        card: What it was fitted on.
        usual: The usual rate by `FineTuningInputs.practice`, where no data beat it.
    """

    spreads: Mapping[str, Number]
    stated: Mapping[str, Number]
    mean: Mapping[str, Number]
    covariance: Sequence[Sequence[Number]]
    noise: Mapping[str, Deviation]
    lapse: Lapse
    shows: Mapping[str, Mapping[str, int]]
    card: Mapping[str, Any]
    usual: Mapping[str, Deviation] = field(default_factory=dict)

    def predict(self, inputs: FineTuningInputs) -> FineTuningEstimate:
        """Return the distributions of the best rate, of the edge, and of what is forgotten.

        A source whose ladders were revealed starts at its own best rate, not at the usual one.

        Raises:
            ArtifactError: No optimizer has a rate as predicted, so the model is damaged.
        """
        forgetting = self._distribution(inputs, "forgetting")
        base = next(term for term in terms(inputs) if term.factor == "base")
        return FineTuningEstimate(
            best=self._distribution(inputs, "best"),
            edge=self._distribution(inputs, "edge"),
            forgetting=forgetting if self._shown(base).get("forgetting", 0) >= _FEW else None,
            lapse=self.lapse,
            contributions=self._contributions(inputs),
            usual=None if inputs.source else self.usual.get(inputs.practice),
            unseen=tuple(
                (term.factor, term.level)
                for term in terms(inputs)
                if term.is_name and term.factor not in ("source", "model") and not self._shown(term)
            ),
        )

    def reveal(
        self,
        inputs: FineTuningInputs,
        *,
        best: tuple[float, float] | None = None,
        edge: tuple[float, float] | None = None,
        mistaken: float = 0.0,
    ) -> FineTuningModel:
        """Return the model that has also seen one ladder of a source.

        A prediction with the same `inputs.source` then uses what was learned of it, and one with
        the same `inputs.model` what was learned of the checkpoint. The posterior stays normal, with
        the moments of the exact one (assumed-density filtering).

        Args:
            inputs: Of the ladder, with a source.
            best: log10 of the rates between which the best one lies; infinite where open.
            edge: log10 of the last rate that trained and of the first that failed.
            mistaken: Chance that the ladder says nothing.

        Raises:
            InputError: The inputs name no source.
        """
        if not inputs.source:
            raise InputError("A ladder is revealed for a source; give the inputs a source.")
        model = self
        for response, bracket in (("best", best), ("edge", edge)):
            if bracket is not None:
                model = model._conditioned(inputs, response, bracket, mistaken)
        return model

    def spread_of(self, block: str, term: Term) -> float:
        """Return the prior standard deviation of a coefficient; 0 where it does not count."""
        scope = term.level.split("/")[0]
        for name in (f"{term.factor} {term.level}", f"{term.factor} ({scope})", term.factor):
            if (spread := self.spreads.get(f"{block}: {name}")) is not None:
                return spread
        return 0.0

    def _shown(self, term: Term) -> Mapping[str, int]:
        return self.shows.get(f"{term.factor} {term.level}", {})

    def counted(self, inputs: FineTuningInputs, response: str) -> list[tuple[str, Term, float]]:
        """(name, term, prior spread) of every coefficient in a response."""
        return [
            (f"{block}: {term.factor} {term.level}", term, spread)
            for block in (SHARED, response)
            for term in terms(inputs)
            if (spread := self.spread_of(block, term)) > 0
        ]

    def _contributions(self, inputs: FineTuningInputs) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, term, _ in self.counted(inputs, "edge"):
            amount = term.value * self.mean.get(name, self.stated.get(name, 0.0))
            if amount:
                key = f"{term.factor} {term.level}"
                found[key] = found.get(key, 0.0) + amount
        return found

    def _distribution(self, inputs: FineTuningInputs, response: str) -> RateMixture:
        order = {name: number for number, name in enumerate(self.mean)}
        location = variance = 0.0
        within = self.noise[response] ** 2
        known: list[tuple[int, float]] = []
        for name, term, spread in self.counted(inputs, response):
            if name in order:
                known.append((order[name], term.value))
                location += term.value * self.mean[name]
                continue
            location += term.value * self.stated.get(name, 0.0)
            if term.factor in _ONLY_FITTED:
                within += spread**2
            else:
                variance += (term.value * spread) ** 2
        variance += sum(
            x * y * self.covariance[max(i, j)][min(i, j)] for i, x in known for j, y in known
        )
        if not abs(location) < SENSELESS:
            raise ArtifactError(
                f"The model of fine-tuning predicts a rate of 1e{location:.0f}; fit it again."
            )
        return RateDistribution(
            location=location,
            within=math.sqrt(within),
            between=math.sqrt(max(variance, _LEAST_VARIANCE)),
        ).alone()

    def _conditioned(
        self,
        inputs: FineTuningInputs,
        response: str,
        bracket: tuple[float, float],
        mistaken: float,
    ) -> FineTuningModel:
        model = self._extended(inputs, response)
        names = list(model.mean)
        counted = {name: term.value for name, term, _ in model.counted(inputs, response)}
        values = [(i, counted[name]) for i, name in enumerate(names) if counted.get(name)]
        known = model.covariance
        pull = [
            sum(known[max(i, j)][min(i, j)] * value for j, value in values)
            for i in range(len(names))
        ]
        means = list(model.mean.values())
        variance = sum(value * pull[i] for i, value in values)
        location = sum(value * means[i] for i, value in values)
        total = variance + model._distribution(inputs, response).within ** 2
        moved, shrunk = doubted_moments(location, total, *bracket, mistaken)
        gain = (moved - location) / total
        loss = (total - shrunk) / total**2
        return replace(
            model,
            mean={n: m + gain * p for (n, m), p in zip(model.mean.items(), pull, strict=True)},
            covariance=[
                [value - loss * here * other for value, other in zip(row, pull, strict=False)]
                for row, here in zip(known, pull, strict=True)
            ],
        )

    def _extended(self, inputs: FineTuningInputs, response: str) -> FineTuningModel:
        new = {
            name: (self.stated.get(name, 0.0), spread**2)
            for name, term, spread in self.counted(inputs, response)
            if name not in self.mean and (term.factor not in _ONLY_FITTED or inputs.model)
        }
        rows = [list(row) for row in self.covariance]
        for _, variance in new.values():
            rows.append([0.0] * len(rows) + [variance])
        mean = dict(self.mean) | {name: location for name, (location, _) in new.items()}
        return replace(self, mean=mean, covariance=rows)

    @classmethod
    def built(cls, stored: Mapping[str, Any]) -> FineTuningModel:
        """Return the model of stored fields; a ValueError says which do not fit each other."""
        lapse = dict(zip(("share", "low", "high"), stored["lapse"], strict=True))
        model = of_stored(cls, {**stored, "lapse": lapse})
        if [len(row) for row in model.covariance] != list(range(1, len(model.mean) + 1)):
            raise ValueError("the covariance is no triangle of the coefficients")
        if any(row[-1] < 0 for row in model.covariance):
            raise ValueError("a variance is negative")
        if not 0 < model.lapse.low < model.lapse.share < model.lapse.high < 0.5:
            raise ValueError("the share of lapses is no share of few runs")
        if set(model.noise) != set(RESPONSES):
            raise ValueError("a response has no noise")
        return model


ARTIFACT = Artifact(
    noun="model of fine-tuning",
    schema="rksp-fine-tuning-1",
    file="fine_tuning.json",
    command="python -m lab fit-fine-tuning",
    build=FineTuningModel.built,
)
load_fine_tuning_model = ARTIFACT.load


def doubted_moments(
    location: float, variance: float, low: float, high: float, mistaken: float
) -> tuple[float, float]:
    """Return the mean and the variance of a normal value that probably lies in [low, high].

    With the chance `mistaken` the interval says nothing, and is as likely as its share of
    `_RANGE` decades; so an interval far from where the value was expected moves it little. The
    other arguments are those of `matched_moments`.
    """
    spread = math.sqrt(variance)
    mass = _below((high - location) / spread) - _below((low - location) / spread)
    idle = mistaken * min((high - low) / _RANGE, 0.5)
    trusted = (1 - mistaken) * mass / max((1 - mistaken) * mass + idle, 1e-300)
    inside, left = matched_moments(location, variance, low, high)
    mean = trusted * inside + (1 - trusted) * location
    spreads = trusted * (left + (inside - mean) ** 2)
    return mean, spreads + (1 - trusted) * (variance + (location - mean) ** 2)


def matched_moments(
    location: float, variance: float, low: float, high: float
) -> tuple[float, float]:
    """Return the mean and the variance of a normal value, given that it lies in [low, high].

    An interval far out in a tail counts as if it began `_FAR_OUT` standard deviations out.

    Args:
        location: Mean of the value before.
        variance: Of the value before.
        low: Least value; infinite where that side is open.
        high: Largest value; infinite where that side is open.
    """
    spread = math.sqrt(variance)
    a, b = (low - location) / spread, (high - location) / spread
    if a > 0:  # the mirror image keeps the difference of two tails from cancelling
        mean, left = matched_moments(-location, variance, -high, -low)
        return -mean, left
    if b < -_FAR_OUT:
        return high, variance * 1e-2
    mass = _below(b) - _below(a)
    if mass < 1e-300:
        return location, variance
    at_a, at_b = _at(a), _at(b)
    first = (at_a - at_b) / mass
    second = ((a * at_a if at_a else 0.0) - (b * at_b if at_b else 0.0)) / mass
    return location + spread * first, variance * max(1 + second - first**2, 1e-6)


def _below(x: float) -> float:
    return 0.5 * math.erfc(-x / _ROOT)


def _at(x: float) -> float:
    return _DENSITY * math.exp(-0.5 * x * x) if math.isfinite(x) else 0.0


def between_neighbours(rates: Sequence[float], chosen: int) -> tuple[float, float]:
    """Return where the best rate lies: nearer to the best of the grid than to its neighbours.

    That is exact for a parabola. At an end of the grid the side is open.
    """
    here = rates[chosen]
    low = -math.inf if chosen == 0 else (rates[chosen - 1] + here) / 2
    high = math.inf if chosen == len(rates) - 1 else (here + rates[chosen + 1]) / 2
    return low, high
