"""The shipped classifier: features in, calibrated probabilities with intervals out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from rksp.classifiers.additive import AdditiveModel
from rksp.errors import ArtifactError
from rksp.features import FEATURE_NAMES, SCHEMA, FeatureVector, Tier, at_unit_rate

ARTIFACT_SCHEMA = "rksp-classifier-2"
_LARGEST_ARTIFACT = 8_000_000  # bytes; ours is a hundredth of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One question at one tier of evidence.

    Attributes:
        model: Raw log-odds.
        slope, offset: Calibration (Platt, 1999): log-odds = slope · raw + offset, fitted on
            predictions for ladders that the model had not seen.
        spread: Decades that the rate may be off by for a family that was not in the data: the
            80th percentile, over families left out of the fit one at a time, of the shift that
            would have made the family's mean prediction right (split conformal over families).
    """

    model: AdditiveModel
    slope: float
    offset: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A calibrated probability and its interval.

    The interval is what the probability would be if the model's edge lay `spread` decades higher
    or lower than its evidence says, more where the features lie outside the fitted range.
    """

    probability: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceClassifier:
    """Heads for `failed` and `diverged` at every tier, with the ranges they were fitted on.

    Attributes:
        heads: Keyed by (question, tier).
        ranges: For each feature but the rate, the 1st and 99th percentile of the fitted rows at
            learning rate 1.
        card: What it was fitted on and how well it does: data digest, families, metrics, limits.
    """

    heads: Mapping[tuple[str, Tier], Head]
    ranges: Mapping[str, tuple[float, float]]
    card: Mapping[str, object]

    def predict(self, features: FeatureVector, question: str = "failed") -> Prediction:
        """Probability of one outcome at the rate that the features stand at.

        Raises:
            ArtifactError: The features follow another schema.
        """
        return self.predict_at(features, np.zeros(1), question)[0]

    def predict_at(
        self, features: FeatureVector, decades: np.ndarray, question: str = "failed"
    ) -> list[Prediction]:
        """`predict` at several rates at once, each so many decades above where the features stand.

        Raises:
            ArtifactError: The features follow another schema.
        """
        head = self._head(features, question)
        # What a new family and what a new range are worth add up like independent errors.
        reach = head.spread * math.hypot(1.0, self.distance(features))
        # What moves with the rate moves the log-odds by the slope alone: one evaluation serves all.
        here = head.model.log_odds(self._row(head, features))[0]
        raw = here + head.model.slope * np.add.outer(decades, (0.0, -reach, reach))
        return [
            Prediction(
                probability=_sigmoid(head.slope * middle + head.offset),
                low=_sigmoid(head.slope * low + head.offset),
                high=_sigmoid(head.slope * high + head.offset),
            )
            for middle, low, high in raw.tolist()
        ]

    def contributions(self, features: FeatureVector, question: str = "failed") -> dict[str, float]:
        """Each feature's exact share of the calibrated log-odds, relative to the average run."""
        head = self._head(features, question)
        shares = head.slope * head.model.contributions(self._row(head, features))[0]
        return dict(zip(head.model.names, shares.tolist(), strict=True))

    def outside(self, features: FeatureVector) -> dict[str, float]:
        """Features outside the fitted range, and by how many times its width.

        What follows the rate is looked at as it is at rate 1: no rate by itself lies outside.
        """
        beyond = {}
        values = dict(zip(FEATURE_NAMES, at_unit_rate(features.values), strict=True))
        for name, (low, high) in self.ranges.items():
            over = max(low - values[name], values[name] - high)
            if math.isfinite(over) and over > 0 and high > low:
                beyond[name] = over / (high - low)
        return beyond

    def distance(self, features: FeatureVector) -> float:
        """Largest excess over a fitted range, in widths of it."""
        return max(self.outside(features).values(), default=0.0)

    def _head(self, features: FeatureVector, question: str) -> Head:
        if features.schema != SCHEMA:
            raise ArtifactError(
                f"The features follow {features.schema!r}, the classifier {SCHEMA!r}; "
                "use versions of rksp and of the classifier that belong together."
            )
        return self.heads[question, features.tier]

    def _row(self, head: Head, features: FeatureVector) -> np.ndarray:
        return np.array([[features[name] for name in head.model.names]])

    def to_json(self) -> str:
        """The artifact: sorted keys, no binary, the same bytes for the same fit."""
        document = {
            "schema": ARTIFACT_SCHEMA,
            "features": SCHEMA,
            "card": self.card,
            "ranges": {name: list(pair) for name, pair in self.ranges.items()},
            "heads": {
                f"{question}/{tier}": {
                    "model": head.model.to_dict(),
                    "slope": head.slope,
                    "offset": head.offset,
                    "spread": head.spread,
                }
                for (question, tier), head in self.heads.items()
            },
        }
        return json.dumps(document, sort_keys=True, allow_nan=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DivergenceClassifier:
        """Reads an artifact.

        Raises:
            ArtifactError: It is too large, damaged, or of another schema.
        """
        if len(text) > _LARGEST_ARTIFACT:
            raise ArtifactError(f"The classifier has {len(text)} bytes, far more than any of ours.")
        try:
            document = json.loads(text)
            if document["schema"] != ARTIFACT_SCHEMA or document["features"] != SCHEMA:
                raise ArtifactError(
                    f"The classifier follows {document['schema']!r} over {document['features']!r}; "
                    f"this rksp reads {ARTIFACT_SCHEMA!r} over {SCHEMA!r}."
                )
            heads = {}
            for key, parts in document["heads"].items():
                question, tier = key.split("/")
                # JSON sorts the features by name; a model keeps the order of the schema.
                stored = parts["model"] | {
                    "features": {
                        name: parts["model"]["features"][name]
                        for name in FEATURE_NAMES
                        if name in parts["model"]["features"]
                    }
                }
                heads[question, Tier.parse(tier)] = Head(
                    model=AdditiveModel.from_dict(stored),
                    slope=float(parts["slope"]),
                    offset=float(parts["offset"]),
                    spread=float(parts["spread"]),
                )
            ranges = {name: (float(a), float(b)) for name, (a, b) in document["ranges"].items()}
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"The classifier cannot be read: {error!r}.") from error
        return cls(heads=heads, ranges=ranges, card=document["card"])


@cache
def load_classifier(path: Path | None = None) -> DivergenceClassifier:
    """The shipped classifier, or the one in a file.

    Raises:
        ArtifactError: There is none, or it cannot be read.
    """
    source = path or files("rksp.classifiers") / "fitted" / "default.json"
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ArtifactError(f"No classifier at {source.name}: {error.strerror}.") from None
    return DivergenceClassifier.from_json(text)


def _sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
