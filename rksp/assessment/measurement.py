"""What was measured of one initialization: numbers that outlive the model and need no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from rksp.checks.facts import ModelFacts
from rksp.documents.shown import ForwardStats, GradientProfile, Placement
from rksp.documents.spectrum import LayerSpectrum, SpectralProfile, Status
from rksp.ground.errors import ArtifactError
from rksp.recipe import Recipe
from rksp.spectra.features import Tier
from rksp.spectra.model_profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Everything measured of one initialization, for any number of recipes.

    Attributes:
        tier: The most evidence that was asked for and can be had.
        profile: Spectra and forward statistics.
        facts: What the checks read off the model.
        source: Fields of `ModelSource` that only a built model shows, by name.
        probe: What the model was shown, in words.
        is_judged: Whether the probe has a loss, so that there is a gradient.
        stands_for: Width and blocks of a transformer with about the same matrices, for a model
            without a chain of blocks.
        weights: How the weights were held, as a sentence.
        gradients: The first gradient of each part that is trained; see
            `rksp.assessment.evidence.trained_part`.
    """

    tier: Tier
    profile: Profile
    facts: ModelFacts
    source: Mapping[str, Any]
    probe: str
    is_judged: bool
    stands_for: tuple[int, int] | None = None
    weights: str = "in memory"
    gradients: Mapping[Recipe, GradientProfile] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write every number with all its digits, and NaN as Python's JSON does."""
        content = asdict(self) | {"tier": str(self.tier)}
        gradients = content["gradients"].items()
        content["gradients"] = [(part.model_dump(mode="json"), found) for part, found in gradients]
        return json.dumps(content, default=_plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> Measurement:
        """Rebuild a measurement.

        Raises:
            ArtifactError: The text is not a measurement of this version.
        """
        try:
            stored = json.loads(text)
            shape = stored["stands_for"]
            gradient = TypeAdapter(GradientProfile).validate_python
            gradients = {
                Recipe.model_validate(part): gradient(found) for part, found in stored["gradients"]
            }
            return cls(
                **stored
                | {
                    "tier": Tier.parse(stored["tier"]),
                    "profile": _profile(stored["profile"]),
                    "facts": ModelFacts(**stored["facts"]),
                    "stands_for": None if shape is None else tuple(shape),
                    "gradients": gradients,
                }
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"This is not a stored measurement: {error!r:.200}.") from error


def _plain(value: StrEnum | np.ndarray | np.generic) -> object:
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
        "placement": None if stored["placement"] is None else Placement(**stored["placement"]),
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
