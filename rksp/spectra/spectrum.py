"""Define a spectrum by name and version, and hold the numbers of one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rksp.spectra.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One definition of the spectrum, by name and version; results carry the name.

    Attributes:
        name: Name with a version; a changed definition gets a new number.
        epsilon: Constant added to the variances when whitening.
        max_residual: Modes with a larger left residual are not counted; None counts all.
        rank: `"auto"` (full, or reduced if states are few), `"full"`, or a number.
        is_ridge: `A = Yw Xw' / n`, which shrinks eigenvalues by w / (w + epsilon).
        layers: Layers in the average of the published score: `"ok"`, or `"measured"` for any
            status, because the paper has none.
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
    """The effect of one block on the residual stream, and how far it can be trusted.

    Only layers whose `status` is OK may be read as risk. A quantity that could not be measured is
    None; `status_detail` gives the reason, with numbers.

    Attributes:
        states_given: Number of state pairs given; `states` of them are distinct, and these have
            `distinct_inputs` distinct inputs.
        modes: Number k of kept directions. `counted_modes` is m, the denominator of the masses.
        rank_reduced_from: The width, if too few states forced a reduced rank.
        eigenvalues: `[modes]` complex128 by descending modulus.
        residuals: `[modes]` float64, `||u*(Y - lambda X)|| / ||u* X||` of the left vectors,
            in-sample. Multiply by `sqrt((N-1) / (N-1-k))` for the bias of the fit.
        near_unit_mass: Share of counted modes in the band. The expansive, contractive and middle
            mass are defined likewise; all four sum to one.
        soft_near_unit_mass: The same with sigmoids for edges, over all modes.
        eigenvector_condition: kappa(V), unit columns; None if V is singular.
        nonnormality: Henrici's `sqrt(||A||_F^2 - sum |lambda|^2) / ||A||_F`, from 0 (normal) to 1.
        growth: `||A^j||_2` for j in `rksp.spectra.operators.GROWTH_POWERS`.
        energy_gain: `||A||_F^2 / k`, the quantity of the paper's Theorem 1.
        nonlinearity: `||Y - A X||_F / ||Y - X||_F`; `nonlinearity_whitened` is the same in whitened
            coordinates, where weak directions weigh most.
        update_ratio: `||Y - X||_F / ||X||_F`; `update_ratio_centered` is that of centered states.
        noise_radius: nu, the radius of the disc over which estimation noise spreads an eigenvalue.
        held_out_residual: `nonlinearity` in the kept directions, each fold predicted by the rest.
        condition: Largest over smallest kept standard deviation of the inputs.
        discarded_energy: Share of the inputs' variance outside the kept directions.
        kreiss: K(A / g) if requested, a lower bound; `kreiss_scale` is g.
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
