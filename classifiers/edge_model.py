"""The model of the edge: from a recipe and a model to three rates and a probability."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from rksp.classifiers.edge_inputs import EdgeInputs, config_features
from rksp.documents.own_runs import LearnedReport
from rksp.ground.errors import ArtifactError, InputError
from rksp.ground.files import read_text

ARTIFACT_SCHEMA = "rksp-edge-3"
DO_NOT_EXCEED = 0.05  # share of the edges that lie below the rate of this name
SHORT, LONG = 300, 5000  # steps: horizons of the lab's ladders and of the real ones
_LARGEST_ARTIFACT = 2_000_000  # bytes; ours is a hundredth of it
_SENSELESS = 20.0  # decades; the edges of the data lie between 1e-4 and 1e2
_NORMAL = NormalDist()
_QUANTILES = np.array([_NORMAL.inv_cdf((i + 0.5) / 41) for i in range(41)])
_OFFSETS = np.arange(-2.5, 1.0001, 0.025)  # decades around the best rate that are looked at


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the configuration lets a measured column be, and how far it may lie from that."""

    line: Line
    reach: float

    def surplus(self, value: float, features: Mapping[str, float]) -> float:
        """Return the value less what is expected, clipped; 0 where it was not measured."""
        if not math.isfinite(value):
            return 0.0
        return float(np.clip(value - self.line.at(features), -self.reach, self.reach))


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """What is learned of runs of one length.

    Attributes:
        edge_spread, best_spread: Standard deviation, in decades, of the error for a source that
            was not in the data.
        edge_noise: The same of the edge within a source.
        below: Nats lost by a rate below the best one, at each of `EdgeModel.knots`.
        above: The same by a rate above the best one, at its distance from the edge.
    """

    edge_spread: float
    edge_noise: float
    best_spread: float
    below: Sequence[float]
    above: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEstimate:
    """What the model says of one model and recipe; rates are nominal peak rates.

    Attributes:
        log_edge, edge_spread: The distribution of log10 of the edge: normal.
        edge_noise: The part of `edge_spread` that remains within one source.
        lapse: Chance that a run ends against what its rate and the edge say.
        log_best, best_spread: The same of the best rate.
        contributions: What each column adds to log10 of the edge, in decades.
        outside: Columns beyond the range of the data, each with by how much, in decades.
        learned: How far a team's own runs moved it; None where there are none.
    """

    log_edge: float
    edge_spread: float
    edge_noise: float
    lapse: float
    log_best: float
    best_spread: float
    contributions: Mapping[str, float]
    outside: Mapping[str, float]
    knots: np.ndarray
    below: np.ndarray
    above: np.ndarray
    learned: LearnedReport | None = None

    def failed(self, rate: float) -> float:
        """Return the chance that a run at this rate fails.

        Its edge lies below the rate, or it lapses: the normal distribution of the edge alone would
        say one in a billion where the data show that one in some hundred runs fails all the same.
        """
        return self._lapsing((math.log10(rate) - self.log_edge) / self.edge_spread)

    def quantile(self, share: float) -> float:
        """Return the rate below which this share of the edges lies."""
        return 10 ** (self.log_edge + self.edge_spread * _NORMAL.inv_cdf(share))

    def rate_of(self, probability: float) -> float | None:
        """Return the rate at which `failed` is this; None where no rate has so small a chance."""
        share = (probability - self.lapse) / (1 - 2 * self.lapse)
        return None if share <= 0 else self.quantile(min(share, 1 - 1e-9))

    @property
    def likely_edge(self) -> float:
        """The median of the edge."""
        return self.quantile(0.5)

    def do_not_exceed(self, share: float = DO_NOT_EXCEED) -> float:
        """Return the quantile at this share.

        It can lie below `start_here` in short runs, where too low a rate costs as much as a
        failure.
        """
        return self.quantile(share)

    def interval(self, rate: float) -> tuple[float, float]:
        """Return P(failed) if the source's edges lie higher, or lower, than nine in ten."""
        shift = 1.2816 * math.sqrt(max(self.edge_spread**2 - self.edge_noise**2, 0.0))
        distance = math.log10(rate) - self.log_edge
        low, high = ((distance + d) / self.edge_noise for d in (-shift, shift))
        return self._lapsing(low), self._lapsing(high)

    def _lapsing(self, distance: float) -> float:
        return self.lapse + (1 - 2 * self.lapse) * _NORMAL.cdf(distance)

    def expected_excess(self, rate: float) -> float:
        """Return the nats that a run at this rate is expected to lose against the best rate."""
        return float(self._excess(np.array([math.log10(rate)]))[0])

    @property
    def start_here(self) -> float:
        """The rate of the least expected loss."""
        rates = self.log_best + _OFFSETS
        return 10 ** float(rates[int(np.argmin(self._excess(rates)))])

    def _excess(self, log_rates: np.ndarray) -> np.ndarray:
        rates = log_rates[:, None]
        low = rates - self.log_best - self.best_spread * _QUANTILES
        high = rates - self.log_edge - self.edge_spread * _QUANTILES
        lost = np.interp(low, self.knots, self.below) + np.interp(high, self.knots, self.above)
        return lost.mean(axis=1)


class EdgePredictor(Protocol):
    """What answers for random initializations: the fitted model, or one that knows own runs too."""

    @property
    def card(self) -> Mapping[str, Any]:
        """What it was fitted on."""

    @property
    def expected(self) -> Mapping[str, Expected]:
        """What the configuration lets every measured column be."""

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distribution of the edge and of the best rate."""

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return by how many widths of its range each measured feature lies outside of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeModel:
    """Two lines, one of the edge and one of the best rate, and what is known of their errors.

    Attributes:
        edge, best: Of the highest rate that is reached.
        expected: Of every measured column.
        short, long: What holds up to `SHORT` steps and from `LONG` on; between, in proportion to
            the logarithm of the steps.
        knots: Decades, of the curves of `Horizon`.
        lapse: Share of runs that fail, or pass, for what is not their rate.
        ranges: Least and largest value of every column in the data.
        measured_ranges: 1st and 99th percentile of every measured feature over the ladders.
        card: What it was fitted on, and the errors of every rule of transfer.
    """

    edge: Line
    best: Line
    expected: Mapping[str, Expected]
    short: Horizon
    long: Horizon
    knots: Sequence[float]
    lapse: float
    ranges: Mapping[str, tuple[float, float]]
    measured_ranges: Mapping[str, tuple[float, float]]
    card: Mapping[str, Any]

    def features(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return every column, measured ones as surplus over what the configuration lets expect."""
        features = config_features(inputs)
        measured = measured or {}
        return features | {
            name: expected.surplus(measured.get(name, math.nan), features)
            for name, expected in self.expected.items()
        }

    def predict(
        self, inputs: EdgeInputs, measured: Mapping[str, float] | None = None
    ) -> EdgeEstimate:
        """Return the distribution of the edge and of the best rate.

        Args:
            inputs: The shape and the recipe.
            measured: Features at learning rate 1 by name (`rksp.features`); None or NaN where
                nothing was measured.

        Raises:
            ArtifactError: A predicted rate is beyond all sense, so the model is damaged.
        """
        features = self.features(inputs, measured)
        unreached = -math.log10(inputs.peak_share)
        log_edge, log_best = self.edge.at(features), self.best.at(features)
        if not max(abs(log_edge), abs(log_best)) < _SENSELESS:
            raise ArtifactError(
                f"The model of the edge predicts rates of 1e{log_edge:.0f} and 1e{log_best:.0f}; "
                "fit it again."
            )
        long = horizon_share(inputs.steps)
        blend = lambda short, far: (1 - long) * np.asarray(short) + long * np.asarray(far)
        return EdgeEstimate(
            log_edge=log_edge + unreached,
            edge_spread=float(blend(self.short.edge_spread, self.long.edge_spread)),
            edge_noise=float(blend(self.short.edge_noise, self.long.edge_noise)),
            lapse=self.lapse,
            log_best=log_best + unreached,
            best_spread=float(blend(self.short.best_spread, self.long.best_spread)),
            contributions=self.edge.contributions(features),
            outside=self._outside(features),
            knots=np.asarray(self.knots),
            below=blend(self.short.below, self.long.below),
            above=blend(self.short.above, self.long.above),
        )

    def strangeness(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return by how many widths of its range each measured feature lies outside of it."""
        over = {
            name: max(low - measured[name], measured[name] - high) / (high - low)
            for name, (low, high) in self.measured_ranges.items()
            if name in measured and high > low
        }
        return {name: widths for name, widths in over.items() if widths > 0}

    def _outside(self, features: Mapping[str, float]) -> dict[str, float]:
        found = {}
        for name, (low, high) in self.ranges.items():
            distance = max(low - features[name], features[name] - high)
            if distance > 1e-9:
                found[name] = round(distance, 4)
        return found

    def to_json(self) -> str:
        """Write the artifact; the same model, the same bytes."""
        document = {"schema": ARTIFACT_SCHEMA} | asdict(self)
        return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EdgeModel:
        """Rebuild a model.

        Raises:
            ArtifactError: The text is not an artifact of this schema, or a number is damaged.
        """
        try:
            stored = json.loads(text)
            if stored["schema"] != ARTIFACT_SCHEMA:
                raise ArtifactError(
                    f"The model of the edge has schema {stored['schema']!r}, not "
                    f"{ARTIFACT_SCHEMA!r}; fit it again with rksp lab fit."
                )
            expected = {
                name: Expected(line=_line(parts["line"]), reach=_number(parts["reach"]))
                for name, parts in stored["expected"].items()
            }
            knots = [_number(x) for x in stored["knots"]]
            if not isinstance(stored["card"]["digest"], str):
                raise TypeError("the digest of the card is not a text")
            for errors in stored["card"].get("transfer", {}).values():
                _number(errors["edge"]), _number(errors["best"])
            return cls(
                edge=_line(stored["edge"]),
                best=_line(stored["best"]),
                expected=expected,
                short=_horizon(stored["short"], len(knots)),
                long=_horizon(stored["long"], len(knots)),
                knots=knots,
                lapse=_lapse(stored["lapse"]),
                ranges=_decades(stored["ranges"]),
                measured_ranges=_ranges(stored["measured_ranges"]),
                card=stored["card"],
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"The model of the edge is damaged: {error!r:.200}.") from error


def horizon_share(steps: float) -> float:
    """0 for runs as short as the lab's, 1 for runs as long as the real ones."""
    share = math.log(steps / SHORT) / math.log(LONG / SHORT)
    return min(1.0, max(0.0, share))


@cache
def load_edge_model(path: Path | None = None) -> EdgeModel:
    """Load the model of a file; `path` None loads the shipped one.

    Raises:
        ArtifactError: There is no such file, or it is not a model.
    """
    path = path or Path(str(files("rksp.classifiers") / "fitted" / "edge.json"))
    try:
        return EdgeModel.from_json(read_text(path, _LARGEST_ARTIFACT))
    except InputError as error:
        raise ArtifactError(f"The model of the edge cannot be read: {error}") from None


def _line(stored: Mapping[str, Any]) -> Line:
    weights = {name: _number(x) for name, x in stored["weights"].items()}
    centers = {name: _number(stored["centers"][name]) for name in weights}
    return Line(intercept=_number(stored["intercept"]), weights=weights, centers=centers)


def _horizon(stored: Mapping[str, Any], knots: int) -> Horizon:
    spreads = [_number(stored[name]) for name in ("edge_spread", "edge_noise", "best_spread")]
    if not 0 < min(spreads) <= max(spreads) < _SENSELESS:
        raise ValueError("a spread is not positive, or beyond all sense")
    if not len(stored["below"]) == len(stored["above"]) == knots:
        raise ValueError("the losses do not stand at the knots")
    return Horizon(
        edge_spread=spreads[0],
        edge_noise=spreads[1],
        best_spread=spreads[2],
        below=[_number(x) for x in stored["below"]],
        above=[_number(x) for x in stored["above"]],
    )


def _lapse(stored: Any) -> float:
    share = _number(stored)
    if not 0 <= share < DO_NOT_EXCEED:
        raise ValueError("the share of lapses is none, or beyond all sense")
    return share


def _decades(stored: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    found = _ranges(stored)
    if not all(abs(end) < 5 * _SENSELESS for ends in found.values() for end in ends):
        raise ValueError("a range is beyond all sense")
    return found


def _ranges(stored: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (_number(low), _number(high)) for name, (low, high) in stored.items()}


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number
