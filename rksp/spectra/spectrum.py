"""What a spectrum is: its definition, by name and version, and the numbers of one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rksp.spectra.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One definition of the spectrum, by name and version; results carry the name.

    Attributes:
        name: With a version; a changed definition gets a new number.
        epsilon: Added to the variances when whitening.
        max_residual: Modes with a larger left residual are not counted; None counts all.
        rank: `"auto"` (full, or reduced where states are few), `"full"`, or a number.
        is_ridge: `A = Yw Xw' / n`, which shrinks eigenvalues by w / (w + epsilon).
        layers: Which layers the published score averages: `"ok"`, or `"measured"` whatever their
            status, as the paper has none.
        near_unit: Band of modulus counted as near-unit, inclusive; above it is expansive.
        contractive: Modulus below which a mode is contractive; the rest is the middle.
        softness: Temperature T of the soft near-unit mass (section 4 of the paper).
    """

    name: str
    epsilon: float = 0.0
    max_residual: float | None = None
    rank: str | int = "auto"
    is_ridge: bool = False
    layers: str = "ok"
    near_unit: tuple[float, float] = (0.90, 1.05)
    contractive: float = 0.80
    softness: float = 20.0


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant(name="rksp-1"),
        Variant(name="paper-full-1", epsilon=1e-5, rank="full", layers="measured"),
        Variant(
            name="paper-filtered-1",
            epsilon=1e-5,
            max_residual=0.1,
            rank="full",
            layers="measured",
        ),
        Variant(name="paper-rank32-1", epsilon=1e-5, rank=32, layers="measured"),
        Variant(name="paper-ridge-1", epsilon=1e-5, rank="full", is_ridge=True, layers="measured"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSpectrum:
    """What one block does to the residual stream, with how far it can be trusted.

    Only layers whose `status` is OK may be read as risk. A quantity that could not be measured is
    None; `status_detail` says why, with the numbers.

    Attributes:
        states_given: State pairs handed in; `states` is how many of them are distinct, and
            `distinct_inputs` how many distinct inputs they have.
        modes: Kept directions k. `counted_modes` is m, the denominator of the masses.
        rank_reduced_from: The width, where too few states forced a reduced rank.
        eigenvalues: `[modes]` complex128 by descending modulus.
        residuals: `[modes]` float64, `||u*(Y - lambda X)|| / ||u* X||` of the left vectors,
            in-sample. Multiply by `sqrt((N-1) / (N-1-k))` for the bias of the fit.
        near_unit_mass: Share of counted modes in the band; likewise expansive, contractive and
            middle, which with it sum to one.
        soft_near_unit_mass: The same with sigmoids for edges, over all modes.
        eigenvector_condition: kappa(V), unit columns; None if V is singular.
        nonnormality: Henrici's `sqrt(||A||_F^2 - sum |lambda|^2) / ||A||_F`, from 0 (normal) to 1.
        growth: `||A^j||_2` for j in `rksp.spectra.operators.GROWTH_POWERS`.
        energy_gain: `||A||_F^2 / k`, the quantity of the paper's Theorem 1.
        nonlinearity: `||Y - A X||_F / ||Y - X||_F`; `nonlinearity_whitened` is that in whitened
            coordinates, where weak directions weigh most.
        update_ratio: `||Y - X||_F / ||X||_F`; `update_ratio_centered` after centering both.
        noise_radius: nu, the radius of the disc that estimation noise makes of one eigenvalue.
        held_out_residual: `nonlinearity` in the kept directions, each fold predicted by the rest.
        condition: Largest over smallest kept standard deviation of the inputs.
        discarded_energy: Share of the inputs' variance outside the kept directions.
        kreiss: K(A / g) if asked for, a lower bound; `kreiss_scale` is g.
    """

    layer: int
    name: str
    variant: str
    status: Status
    status_detail: str
    width: int
    states_given: int
    states: int
    distinct_inputs: int
    modes: int = 0
    counted_modes: int = 0
    rank_reduced_from: int | None = None
    eigenvalues: np.ndarray
    residuals: np.ndarray
    near_unit_mass: float | None = None
    expansive_mass: float | None = None
    contractive_mass: float | None = None
    middle_mass: float | None = None
    soft_near_unit_mass: float | None = None
    spectral_radius: float | None = None
    eigenvector_condition: float | None = None
    nonnormality: float | None = None
    largest_singular_value: float | None = None
    growth: tuple[float | None, ...] = ()
    energy_gain: float | None = None
    nonlinearity: float | None = None
    nonlinearity_whitened: float | None = None
    update_ratio: float | None = None
    update_ratio_centered: float | None = None
    noise_radius: float | None = None
    held_out_residual: float | None = None
    condition: float | None = None
    discarded_energy: float | None = None
    discarded_directions: int = 0
    kreiss: float | None = None
    kreiss_scale: float | None = None

    @property
    def max_growth(self) -> float | None:
        """Largest measured `||A^j||_2`; None if a power overflowed."""
        known = [norm for norm in self.growth if norm is not None]
        return max(known) if known and len(known) == len(self.growth) else None
