"""What was measured of one initialization: numbers that outlive the model and need no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
        pairs = [
            (part.model_dump(mode="json"), asdict(found)) for part, found in self.gradients.items()
        ]
        content = asdict(self) | {"tier": str(self.tier), "gradients": pairs}
        return json.dumps(content, default=_plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> Measurement:
        """Rebuild a measurement.

        Raises:
            ArtifactError: The text is not a measurement of this version.
        """
        try:
            return _measurement(**json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"This is not a stored measurement: {error!r:.200}.") from error


_Stored = dict[str, Any]  # of a record, by the names of its fields


def _measurement(
    *,
    tier: str,
    profile: _Stored,
    facts: _Stored,
    stands_for: Sequence[int] | None,
    gradients: Iterable[tuple[object, object]],
    **rest: Any,
) -> Measurement:
    gradient = TypeAdapter(GradientProfile).validate_python
    return Measurement(
        tier=Tier.parse(tier),
        profile=_profile(**profile),
        facts=ModelFacts(**facts),
        stands_for=None if stands_for is None else (stands_for[0], stands_for[1]),
        gradients={Recipe.model_validate(part): gradient(found) for part, found in gradients},
        **rest,
    )


def _plain(value: object) -> object:
    """Convert an array, a number of numpy or a status to what JSON can hold."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, np.ndarray) and np.iscomplexobj(value):
        return [value.real.tolist(), value.imag.tolist()]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _profile(
    *,
    spectra: _Stored,
    forward: object,
    chains: Iterable[tuple[str, int]],
    notes: Iterable[str],
    placement: _Stored | None,
    **rest: Any,
) -> Profile:
    return Profile(
        spectra=_spectra(**spectra),
        forward=TypeAdapter(ForwardStats).validate_python(forward),
        chains=tuple((path, count) for path, count in chains),
        notes=tuple(notes),
        placement=None if placement is None else Placement(**placement),
        **rest,
    )


def _spectra(*, layers: Iterable[_Stored], **rest: Any) -> SpectralProfile:
    return SpectralProfile(layers=tuple(_spectrum(**layer) for layer in layers), **rest)


def _spectrum(
    *, status: str, eigenvalues: tuple[object, object], residuals: object, **rest: Any
) -> LayerSpectrum:
    real, imaginary = (np.asarray(part, dtype=np.float64) for part in eigenvalues)
    whole = np.empty(len(real), dtype=np.complex128)
    whole.real, whole.imag = real, imaginary
    return LayerSpectrum(
        status=Status(status),
        eigenvalues=whole,
        residuals=np.asarray(residuals, dtype=np.float64),
        **rest,
    )
