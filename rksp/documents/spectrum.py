"""Define spectra by name and version, how far they can be trusted, and hold their numbers."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from rksp.ground.errors import InputError
from rksp.ground.text import words

if TYPE_CHECKING:  # the numbers are read without numpy
    import numpy as np

QUANTITIES = words(
    "near_unit_mass expansive_mass contractive_mass spectral_radius eigenvector_condition "
    "nonnormality energy_gain nonlinearity update_ratio update_ratio_centered condition"
)
MIN_COVERAGE = 0.5  # with a smaller share of trusted layers, the profile is indeterminate

Aggregates = Mapping[str, Mapping[str, float | int]]


class Status(StrEnum):
    """The outcome of fitting one layer. Only `OK` layers enter the aggregates."""

    OK = "ok"
    RANK_DEFICIENT = "rank_deficient"
    TOO_FEW_STATES = "too_few_states"
    VANISHING_UPDATE = "vanishing_update"
    NON_FINITE = "non_finite"
    ILL_CONDITIONED = "ill_conditioned"

    @property
    def remedy(self) -> str:
        """What the status means for the reader and what to do about it, in one sentence."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.OK: "Nothing to do.",
    Status.RANK_DEFICIENT: (
        "The states span fewer directions than the fit needs; use a longer or more varied probe "
        "(--probe FILE), or a lower --directions."
    ),
    Status.TOO_FEW_STATES: (
        "Too few distinct states for this many eigenvalues, so every residual would be zero; "
        "raise --snapshots to at least 1.5 times the width, or lower --directions."
    ),
    Status.VANISHING_UPDATE: (
        "The block returns its input almost unchanged (a zero-initialized branch, for example), "
        "so its spectrum says nothing about risk; score again after a few training steps."
    ),
    Status.NON_FINITE: (
        "The states hold NaN or infinity; see the forward findings for the first bad module."
    ),
    Status.ILL_CONDITIONED: (
        "The kept directions differ in scale by more than their precision resolves; run the "
        "forward pass in float32, or lower --directions."
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One definition of the spectrum, by name and version; results carry the name.

    Attributes:
        name: Name with a version; a changed definition gets a new number.
        is_published: Whether it is the paper's: of full rank, where ours is reduced if states are
            few; and its score averages layers of any status, where ours takes those of OK.
        epsilon: Constant added to the variances when whitening.
        max_residual: Modes with a larger left residual are not counted; None counts all.
    """

    name: str
    is_published: bool = False
    epsilon: float = 0.0
    max_residual: float | None = None


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(name="rksp-1"),
        Variant(name="paper-full-1", is_published=True, epsilon=1e-5),
        Variant(name="paper-filtered-1", is_published=True, epsilon=1e-5, max_residual=0.1),
    )
}
NEAR_UNIT = (0.90, 1.05)  # moduli that count as near-unit, inclusive; above them are expansive ones


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSpectrum:
    """The effect of one block on the residual stream, and how far it can be trusted.

    Only layers whose `status` is OK may be read as risk. A quantity that could not be measured is
    None; `status_detail` gives the reason, with numbers.

    Attributes:
        states: Number of distinct state pairs; they have `distinct_inputs` distinct inputs.
        modes: Number k of kept directions.
        rank_reduced_from: The width, if too few states forced a reduced rank.
        eigenvalues: `[modes]` complex128 by descending modulus.
        residuals: `[modes]` float64, `||u*(Y - lambda X)|| / ||u* X||` of the left vectors,
            in-sample (times `sqrt((N-1) / (N-1-k))` without the bias of the fit); empty where the
            definition filters no modes.
        near_unit_mass: Share of counted modes in the band. The expansive and the contractive mass
            are defined likewise.
        eigenvector_condition: kappa(V), unit columns; None if V is singular.
        nonnormality: Henrici's `sqrt(||A||_F^2 - sum |lambda|^2) / ||A||_F`, from 0 (normal) to 1.
        energy_gain: `||A||_F^2 / k`, the quantity of the paper's Theorem 1.
        nonlinearity: `||Y - A X||_F / ||Y - X||_F`.
        update_ratio: `||Y - X||_F / ||X||_F`; `update_ratio_centered` is that of centered states.
        condition: Largest over smallest kept standard deviation of the inputs.
    """

    layer: int
    name: str
    variant: str
    status: Status
    status_detail: str
    width: int
    states: int
    distinct_inputs: int
    modes: int = 0
    rank_reduced_from: int | None = None
    eigenvalues: np.ndarray
    residuals: np.ndarray
    near_unit_mass: float | None = None
    expansive_mass: float | None = None
    contractive_mass: float | None = None
    spectral_radius: float | None = None
    eigenvector_condition: float | None = None
    nonnormality: float | None = None
    energy_gain: float | None = None
    nonlinearity: float | None = None
    update_ratio: float | None = None
    update_ratio_centered: float | None = None
    condition: float | None = None


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

    layers: tuple[LayerSpectrum, ...] = ()
    variant: str
    aggregates: Aggregates = field(default_factory=dict)
    coverage: float = 0.0
    published_score: float | None = None
    reading: str = "not measured"
    reason: str

    @classmethod
    def of(cls, layers: Iterable[LayerSpectrum], variant: Variant) -> SpectralProfile:
        """Sort the layers, which all follow the variant, and aggregate them.

        Raises:
            InputError: There are no layers.
        """
        ordered = tuple(sorted(layers, key=lambda s: s.layer))
        if not ordered:
            raise InputError(
                "There are no spectra of blocks; give a model with at least one block."
            )
        trusted = [s for s in ordered if s.status is Status.OK]
        counted = ordered if variant.is_published else trusted
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
