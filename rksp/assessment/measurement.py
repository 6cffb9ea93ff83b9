"""What was measured of one initialization, and what it says to the model of the edge; no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from rksp.assessment.evidence import Evidence
from rksp.assessment.risk import edge_inputs, kind_of
from rksp.checks.facts import ModelFacts
from rksp.classifiers.edge_inputs import CLASSIFIER_VOCABULARY, EdgeInputs, Norm
from rksp.ground.errors import ArtifactError
from rksp.ground.model import definite
from rksp.measure.forward_stats import (
    LOGITS_NOT_FINITE,
    ForwardStats,
)
from rksp.measure.response_profile import GRADIENT_NOT_FINITE, ResponseProfile
from rksp.recipe import Recipe
from rksp.spectra.features import Tier
from rksp.spectra.model_profile import Profile
from rksp.spectra.spectrum import LayerSpectrum, SpectralProfile
from rksp.spectra.status import Status

_VOCABULARY = 50_000  # for a model without classes
_SAME_SIZE = 1.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything measured of one initialization, for any number of recipes.

    Attributes:
        tier: The most evidence that was asked for and can be had.
        profile: Spectra and forward statistics.
        facts: What the checks read off the model.
        source: Fields of `ModelSource` that only a built model shows, by name.
        probe: What the model was shown, in words.
        is_judged: Whether the probe has a loss, so that there is a response.
        stands_for: Width and blocks of a transformer with about the same matrices, for a model
            without a chain of blocks.
        weights: How the weights were held, as a sentence.
        responses: The response to each first update that was measured, by its reduced recipe; see
            `rksp.assessment.evidence.first_step`.
    """

    tier: Tier
    profile: Profile
    facts: ModelFacts
    source: Mapping[str, Any]
    probe: str
    is_judged: bool
    stands_for: tuple[int, int] | None = None
    weights: str = "in memory"
    responses: Mapping[Recipe, ResponseProfile] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write every number with all its digits, and NaN as Python's JSON does."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content |= {"profile": asdict(self.profile), "facts": asdict(self.facts)}
        content["responses"] = [
            (step.model_dump(mode="json"), asdict(found)) for step, found in self.responses.items()
        ]
        return json.dumps(content | {"tier": str(self.tier)}, default=_plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> Measurement:
        """Rebuild a measurement.

        Raises:
            ArtifactError: The text is not a measurement of this version.
        """
        try:
            stored = json.loads(text)
            shape = stored["stands_for"]
            response = TypeAdapter(ResponseProfile).validate_python
            responses = {
                Recipe.model_validate(step): response(found) for step, found in stored["responses"]
            }
            return cls(
                **stored
                | {
                    "tier": Tier.parse(stored["tier"]),
                    "profile": _profile(stored["profile"]),
                    "facts": ModelFacts(**stored["facts"]),
                    "stands_for": None if shape is None else tuple(shape),
                    "responses": responses,
                }
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"This is not a stored measurement: {error!r:.200}.") from error


def _plain(value: Any) -> Any:
    """Return what JSON can hold of an array, a number of numpy or a status."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, np.ndarray) and np.iscomplexobj(value):
        return [value.real.tolist(), value.imag.tolist()]
    return value.tolist()


def _profile(stored: dict[str, Any]) -> Profile:
    layers: dict[str, Any] = {"layers": tuple(map(_spectrum, stored["spectra"]["layers"]))}
    changed: dict[str, Any] = {
        "spectra": SpectralProfile(**stored["spectra"] | layers),
        "forward": TypeAdapter(ForwardStats).validate_python(stored["forward"]),
        "chains": tuple((path, count) for path, count in stored["chains"]),
        "notes": tuple(stored["notes"]),
    }
    return Profile(**stored | changed)


def _spectrum(stored: dict[str, Any]) -> LayerSpectrum:
    real, imaginary = (np.asarray(part, dtype=np.float64) for part in stored["eigenvalues"])
    eigenvalues = np.empty(len(real), dtype=np.complex128)
    eigenvalues.real, eigenvalues.imag = real, imaginary
    changed: dict[str, Any] = {
        "status": Status(stored["status"]),
        "eigenvalues": eigenvalues,
        "residuals": np.asarray(stored["residuals"], dtype=np.float64),
    }
    return LayerSpectrum(**stored | changed)


def measured_inputs(evidence: Evidence, recipe: Recipe) -> EdgeInputs:
    """Return the inputs of the edge model for a measured model and a recipe."""
    seen = evidence.profile
    width, depth = definite(seen).width, sum(length for _, length in definite(seen).chains)
    stands_for = definite(evidence.measurement).stands_for
    if stands_for is not None:
        width, depth = stands_for
    return edge_inputs(
        recipe,
        width=width,
        depth=depth,
        vocabulary=_vocabulary(evidence),
        norm=_norm(evidence),
        **kind_of(evidence.declared),
    )


def _vocabulary(evidence: Evidence) -> int:
    """Return the number of tokens that the model distinguishes."""
    loss = definite(evidence.profile).forward.uniform_loss
    if evidence.source.task.endswith("classification"):
        return CLASSIFIER_VOCABULARY
    return _VOCABULARY if loss is None else max(2, round(math.exp(loss)))


def _norm(evidence: Evidence) -> Norm:
    """Tell where the blocks normalize: post-norm blocks all leave states of the same size."""
    if not definite(evidence.facts).block_norms:
        return "none"
    sizes = [block.rms_out for block in definite(evidence.profile).forward.blocks]
    is_post = len(sizes) > 1 and min(sizes) > 0 and max(sizes) < min(sizes) * _SAME_SIZE
    return "post" if is_post else "pre"


def not_finite(seen: Profile, response: ResponseProfile | None) -> str | None:
    """Return what makes training impossible for any recipe, or None."""
    if seen.forward.not_measured.get("loss") == LOGITS_NOT_FINITE:
        return f"{LOGITS_NOT_FINITE} (first in {seen.forward.non_finite})"
    if response is not None and response.reason == GRADIENT_NOT_FINITE:
        return GRADIENT_NOT_FINITE
    return None


def loss_doubts(seen: Profile) -> list[str]:
    """Return a clause where the model's own loss is none that a labelled run minimizes."""
    is_other = seen.forward.loss is not None and seen.forward.uniform_loss is None
    return ["rksp does not recognize this loss as a cross-entropy"] * is_other


def doubts_of(
    seen: Profile, response: ResponseProfile | None, of_recipe: Sequence[str]
) -> tuple[str, ...]:
    """Return the reasons why the evidence does not support an answer, with those of the recipe."""
    doubts = [] if seen.chains else ["the labelled runs all have a residual stream"]
    doubts += of_recipe
    doubts += loss_doubts(seen)
    if response is not None and response.reason is not None:
        doubts.append(f"the gradient could not be measured: {response.reason}")
    if response is None and seen.spectra.reading == "indeterminate":
        doubts.append(f"the spectrum is degenerate: {seen.spectra.reason}")
    if response is None and seen.spectra.reading == "not measured":
        doubts.append(f"neither spectra nor the gradient could be measured: {seen.spectra.reason}")
    return tuple(doubts)
