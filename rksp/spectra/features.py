"""Define what a model shows before training: named numbers that the answer and the lab read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the numbers outlive the tensors they came from: the answer needs no torch
    from rksp.documents.shown import ForwardStats, GradientProfile
    from rksp.documents.spectrum import LayerSpectrum, SpectralProfile

SCHEMA = "features-1"


class Tier(IntEnum):
    """The evidence that was gathered for an answer. Each tier includes the tiers below it."""

    CONFIG = 0  # the recipe and the shape: no forward pass
    FORWARD = 1  # one forward pass: spectra, forward statistics, aligned response
    GRADIENT = 2  # a backward pass

    @classmethod
    def parse(cls, name: str) -> Tier:
        """Return the tier called `name`."""
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


# Name -> what it says in a sentence. Those that end in `_rate` are log10 of the learning rate 1
# over a rate, or times a gain.
FEATURES: Mapping[str, str] = {
    "near_unit_mass": "near-unit spectral mass",
    "expansive_mass": "expansive spectral mass",
    "spectral_radius": "the spectral radius of the blocks",
    "eigenvector_condition": "the eigenvectors' condition",
    "nonnormality": "the blocks' departure from normality",
    "energy_gain": "the blocks' energy gain",
    "nonlinearity": "how nonlinear the blocks are",
    "update_ratio": "how far blocks move the residual stream",
    "residual_growth": "growth of the residual stream with depth",
    "excess_initial_loss": "the initial loss above a uniform guess",
    "logit_std": "the spread of the output logits",
    "attention_logit_std": "the spread of the attention logits",
    "attention_entropy": "the entropy of attention",
    "aligned_rate": "how far one aligned step moves the layers",
    "grad_norm": "the gradient norm before the first step",
    "grad_rms": "the gradient's typical size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The features of one model, all of them at learning rate 1.

    Attributes:
        values: Every name of `FEATURES`; NaN where not measured, never zero.
        tier: The richest evidence that was gathered.
    """

    values: Mapping[str, float]
    tier: Tier


def extract(
    forward: ForwardStats | None = None,
    spectra: SpectralProfile | None = None,
    gradient: GradientProfile | None = None,
) -> Features:
    """Read the features off what was measured.

    Logarithms are decimal. Nothing depends on the width by itself, so that what was fitted at
    width 64 means something at 4096.
    """
    found: dict[str, float | None] = {}
    tier = Tier.CONFIG
    if forward is not None and spectra is not None:
        tier = Tier.FORWARD
        found |= _of_spectra(spectra) | _of_forward(forward)
    if gradient is not None:
        tier = Tier.GRADIENT
        found |= {"grad_norm": _log(gradient.grad_norm), "grad_rms": _log(gradient.grad_rms)}
    known = {n: value for n, value in found.items() if value is not None and math.isfinite(value)}
    return Features(values={n: float(known.get(n, math.nan)) for n in FEATURES}, tier=tier)


def _of_spectra(spectra: SpectralProfile) -> dict[str, float | None]:
    def mean(name: str) -> float | None:
        return spectra.aggregates.get(name, {}).get("mean")

    return {
        "near_unit_mass": mean("near_unit_mass"),
        "expansive_mass": mean("expansive_mass"),
        "spectral_radius": _log(mean("spectral_radius")),
        "eigenvector_condition": _log(mean("eigenvector_condition")),
        "nonnormality": mean("nonnormality"),
        "energy_gain": _log(mean("energy_gain")),
        "nonlinearity": _nonlinearity(spectra.layers),
        "update_ratio": _log(mean("update_ratio")),
    }


def _nonlinearity(layers: Sequence[LayerSpectrum]) -> float | None:
    """Return the mean over the blocks whose states span the width; None if most do not.

    Directions that too few states left out of a block's map would count as nonlinear: a width of
    the number of states would take 0.25 to 0.7. The first block of a model with rotary positions
    sees no more states than there are tokens in the text.
    """
    known = [
        layer.nonlinearity
        for layer in layers
        if layer.status == "ok" and not layer.rank_reduced_from and layer.nonlinearity is not None
    ]
    return sum(known) / len(known) if known and 2 * len(known) >= len(layers) else None


def _of_forward(forward: ForwardStats) -> dict[str, float | None]:
    excess = None
    if forward.loss is not None and forward.uniform_loss is not None:
        # Without the input token that a tied output layer copies: one step unlearns it.
        excess = forward.loss - forward.uniform_loss - (forward.copied or 0.0)
    growth = None
    if forward.blocks and forward.blocks[0].rms_in > 0 and forward.blocks[-1].rms_out > 0:
        ratio = forward.blocks[-1].rms_out / forward.blocks[0].rms_in
        growth = math.log(ratio) / len(forward.blocks)
    attention = forward.attention
    return {
        "residual_growth": growth,
        "excess_initial_loss": excess,
        "logit_std": _log(forward.logit_std),
        "attention_logit_std": _log(max((a.logit_std for a in attention), default=None)),
        "attention_entropy": min((a.entropy for a in attention), default=None),
        "aligned_rate": _log(forward.aligned_response),
    }


def _log(value: float | None) -> float | None:
    return math.log10(value) if value is not None and 0 < value < math.inf else None


UNMEASURED = extract()  # of a model that was not built
