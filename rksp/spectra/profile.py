"""Aggregate the spectra of all blocks of a model over the layers that can be trusted."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rksp.ground.errors import InputError
from rksp.ground.text import words
from rksp.spectra.spectrum import LayerSpectrum, Variant
from rksp.spectra.status import Status

QUANTITIES = words(
    "near_unit_mass expansive_mass contractive_mass middle_mass soft_near_unit_mass "
    "spectral_radius eigenvector_condition nonnormality largest_singular_value max_growth "
    "energy_gain nonlinearity nonlinearity_whitened update_ratio update_ratio_centered "
    "noise_radius held_out_residual condition discarded_energy kreiss"
)
MIN_COVERAGE = 0.5  # with a smaller share of trusted layers, the profile is indeterminate

Aggregates = Mapping[str, Mapping[str, float | int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpectralProfile:
    """One spectrum per block, and their aggregates.

    Attributes:
        layers: Spectra by position in the chain, with any status.
        variant: Name of the definition that all of them follow.
        aggregates: For each quantity of `QUANTITIES` measured on at least one OK layer, its `mean`,
            `max`, `min`, `std` (population) and `count` over the OK layers.
        coverage: Share of layers that are OK.
        published_score: Layer mean of the near-unit mass, over the layers that the variant counts;
            None if no such layer has one.
        reading: `"measured"`, `"indeterminate"` if the profile must not be read as risk, or
            `"not measured"`.
        reason: Why it is not measured, with numbers and a remedy; otherwise empty.
    """

    layers: tuple[LayerSpectrum, ...]
    variant: str
    aggregates: Aggregates
    coverage: float
    published_score: float | None
    reading: str
    reason: str

    @classmethod
    def not_measured(cls, variant: str, reason: str) -> SpectralProfile:
        """Return the profile of a model that has no blocks to measure."""
        return cls(
            layers=(),
            variant=variant,
            aggregates={},
            coverage=0.0,
            published_score=None,
            reading="not measured",
            reason=reason,
        )

    @classmethod
    def of(cls, layers: Iterable[LayerSpectrum], variant: Variant) -> SpectralProfile:
        """Sort the layers and aggregate them.

        Raises:
            InputError: There are no layers, or one follows another variant.
        """
        ordered = tuple(sorted(layers, key=lambda s: s.layer))
        if not ordered:
            raise InputError(
                "There are no spectra of blocks; give a model with at least one block."
            )
        others = sorted({s.variant for s in ordered} - {variant.name})
        if others:
            raise InputError(
                f"Layers use {', '.join(others)} as well as {variant.name}; use one variant."
            )
        trusted = [s for s in ordered if s.status is Status.OK]
        counted = trusted if variant.layers == "ok" else ordered
        masses = [s.near_unit_mass for s in counted if s.near_unit_mass is not None]
        reason = _reason(ordered, len(trusted))
        return cls(
            layers=ordered,
            variant=variant.name,
            aggregates=_aggregate(trusted),
            coverage=len(trusted) / len(ordered),
            published_score=statistics.fmean(masses) if masses else None,
            reading="indeterminate" if reason else "measured",
            reason=reason,
        )


def _aggregate(layers: Iterable[LayerSpectrum]) -> Aggregates:
    trusted = list(layers)
    found: dict[str, dict[str, float | int]] = {}
    for quantity in QUANTITIES:
        values = [v for s in trusted if (v := getattr(s, quantity)) is not None]
        if values and all(map(math.isfinite, values)):
            found[quantity] = {
                "mean": statistics.fmean(values),
                "max": max(values),
                "min": min(values),
                "std": statistics.pstdev(values),
                "count": len(values),
            }
    return found


def _reason(layers: tuple[LayerSpectrum, ...], trusted: int) -> str:
    if trusted >= MIN_COVERAGE * len(layers):
        return ""
    failures = Counter(s.status for s in layers if s.status is not Status.OK)
    status, count = failures.most_common(1)[0]
    example = next(s for s in layers if s.status is status)
    return (
        f"{count} of {len(layers)} layers are {status.value.replace('_', ' ')} "
        f"(layer {example.layer}: {example.status_detail}). {status.remedy}"
    )
