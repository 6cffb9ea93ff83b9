"""Define the classifier's input: a named, ordered, versioned vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from rksp.optimizers.table import Family, OptimizerSpec, optimizer_spec
from rksp.recipe import Recipe

if TYPE_CHECKING:  # classifiers use the vector without torch
    from rksp.measure.forward import ForwardStats
    from rksp.measure.lr_range import RangeTest
    from rksp.measure.response import ResponsePoint, ResponseProfile
    from rksp.spectra.profile import SpectralProfile

SCHEMA = "features-1"


class Tier(IntEnum):
    """The evidence that was gathered for an answer. Each tier includes the tiers below it."""

    CONFIG = 0  # the recipe and the shape: no forward pass
    FORWARD = 1  # one forward pass: spectra, forward statistics, aligned response
    RESPONSE = 2  # a backward pass and a few forward passes along the first update
    MICRO = 3  # forty real steps at rising rates, weights restored

    @classmethod
    def parse(cls, name: str) -> Tier:
        """Return the tier called `name`."""
        return cls[name.upper()]

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One column of the vector.

    Attributes:
        name: Key of the feature.
        tier: The cheapest tier that measures it.
        meaning: The phrase for it in a sentence about contributions.
        follows_rate: Whether the value is log10(learning rate) plus a term that does not depend on
            the rate. Such a value rises with the rate, and the risk may only rise with it.
    """

    name: str
    tier: Tier
    meaning: str
    follows_rate: bool = False


def _config(name: str, meaning: str, **more: bool) -> Feature:
    return Feature(name=name, tier=Tier.CONFIG, meaning=meaning, **more)


def _forward(name: str, meaning: str, **more: bool) -> Feature:
    return Feature(name=name, tier=Tier.FORWARD, meaning=meaning, **more)


def _response(name: str, meaning: str, **more: bool) -> Feature:
    return Feature(name=name, tier=Tier.RESPONSE, meaning=meaning, **more)


def _micro(name: str, meaning: str, **more: bool) -> Feature:
    return Feature(name=name, tier=Tier.MICRO, meaning=meaning, **more)


FEATURES: tuple[Feature, ...] = (
    _config("rate", "the learning rate", follows_rate=True),
    _config("warmup_share", "the share of steps spent warming up"),
    _config("warmup_steps", "the number of warm-up steps"),
    _config("batch_tokens", "the tokens in a batch"),
    _config("decay", "how far the schedule lowers the rate"),
    _config("adam_memory", "the memory of Adam's second moment"),
    _config("adam_epsilon", "Adam's epsilon"),
    _config("weight_decay", "weight decay"),
    _config("clipping", "gradient clipping"),
    _config("is_sgd", "the optimizer (SGD)"),
    _config("is_lion", "the optimizer (Lion)"),
    _config("is_adafactor", "the optimizer (Adafactor)"),
    _config("is_muon", "the optimizer (Muon)"),
    _config("depth", "the number of blocks"),
    _forward("near_unit_mass", "near-unit spectral mass"),
    _forward("expansive_mass", "expansive spectral mass"),
    _forward("spectral_radius", "the spectral radius of the blocks"),
    _forward("eigenvector_condition", "the eigenvectors' condition"),
    _forward("nonnormality", "the blocks' departure from normality"),
    _forward("energy_gain", "the blocks' energy gain"),
    _forward("nonlinearity", "how nonlinear the blocks are"),
    _forward("update_ratio", "how far blocks move the residual stream"),
    _forward("residual_growth", "growth of the residual stream with depth"),
    _forward("excess_initial_loss", "the initial loss above a uniform guess"),
    _forward("logit_std", "the spread of the output logits"),
    _forward("attention_logit_std", "the spread of the attention logits"),
    _forward("attention_entropy", "the entropy of attention"),
    _forward("aligned_rate", "how far one aligned step moves the layers", follows_rate=True),
    _response("update_rms_rate", "the size of the first update", follows_rate=True),
    _response("critical_rate", "the rate beyond which one step raises the loss", follows_rate=True),
    _response("rise_rate", "the rate at which one step raises the loss by 0.25", follows_rate=True),
    _response("same_critical_rate", "the critical rate on the step's own batch", follows_rate=True),
    _response("same_rise_rate", "the rise on the step's own batch", follows_rate=True),
    _response("best_step_rate", "the rate at which one step helps most", follows_rate=True),
    _response("output_rate", "how far the first step moves the output", follows_rate=True),
    _response("grad_norm", "the gradient norm before the first step"),
    _response("grad_rms", "the gradient's typical size"),
    _response("overshoot", "the damage of one step far too large"),
    _micro("lowest_rate", "the best rate of the range test", follows_rate=True),
    _micro("early_rise_rate", "where the range test begins to rise", follows_rate=True),
    _micro("range_rise_rate", "where the range test has risen by 0.25", follows_rate=True),
    _micro("late_rise_rate", "where the range test has risen by one nat", follows_rate=True),
    _micro("range_fall", "how far the range test falls"),
    _micro("range_rise", "how far the range test rises"),
)
# The columns are zero for the adaptive family, which has no column of its own. The columns keep the
# names of the optimizers that the bundled classifier was fitted on.
_FAMILY_COLUMNS: dict[Family, str] = {
    "plain": "is_sgd",
    "sign-like": "is_lion",
    "orthogonal": "is_muon",
}
_OPTIMIZER_COLUMNS = ("is_sgd", "is_lion", "is_adafactor", "is_muon")
FEATURE_NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES)
_FOLLOWS_RATE = np.array([feature.follows_rate for feature in FEATURES], dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureVector:
    """Values in the order of `FEATURES`; a feature that was not measured is NaN, never zero.

    `values` is `[features]` float64. `tier` is the richest evidence that was gathered.
    """

    values: np.ndarray
    tier: Tier
    schema: str = SCHEMA

    def at(self, learning_rate: float) -> FeatureVector:
        """Return the features of the same run at another learning rate."""
        return self.moved(math.log10(learning_rate) - self["rate"])

    def moved(self, decades: float) -> FeatureVector:
        """Return the features of the same run at a rate this many decades higher."""
        return replace(self, values=self.values + decades * _FOLLOWS_RATE)

    def __getitem__(self, name: str) -> float:
        return float(self.values[FEATURE_NAMES.index(name)])


def at_unit_rate(values: np.ndarray) -> np.ndarray:
    """Return the features at learning rate 1, `[…, features]`; the rate itself becomes 0."""
    rate = values[..., FEATURE_NAMES.index("rate")]
    return values - rate[..., None] * _FOLLOWS_RATE


def columns(tier: Tier) -> list[int]:
    """Return the indices of the features that a tier measures."""
    return [i for i, feature in enumerate(FEATURES) if feature.tier <= tier]


def extract(
    recipe: Recipe,
    *,
    depth: int,
    forward: ForwardStats | None = None,
    spectra: SpectralProfile | None = None,
    response: ResponseProfile | None = None,
    range_test: RangeTest | None = None,
) -> FeatureVector:
    """Return the features of one run.

    Logarithms are decimal. No feature is the width itself, so that a classifier fitted at width 64
    also applies at 4096.

    Args:
        recipe: A recipe with a learning rate; `FeatureVector.at` moves to another rate.
        depth: Number of blocks; 0 for a model without a chain of blocks.
        forward: Forward statistics, if measured.
        spectra: Spectra of the blocks, if measured.
        response: Response to the first update, if measured.
        range_test: Range test, if run.

    Returns:
        The features; those without a measurement are NaN.
    """
    rate = math.log10(recipe.learning_rate)
    found: dict[str, float | None] = _of_recipe(recipe, depth) | {"rate": rate}
    tier = Tier.CONFIG
    if forward is not None and spectra is not None:
        tier = Tier.FORWARD
        found |= _of_spectra(spectra) | _of_forward(forward, rate)
    if response is not None:
        tier = Tier.RESPONSE
        found |= _of_response(response, rate)
    if range_test is not None:
        tier = Tier.MICRO
        found |= _of_range_test(range_test, rate)
    values = [_number(found.get(name)) for name in FEATURE_NAMES]
    return FeatureVector(values=np.array(values), tier=tier)


def _of_recipe(recipe: Recipe, depth: int) -> dict[str, float]:
    spec = optimizer_spec(recipe.optimizer)
    is_adam = spec.follow_adam != "none"
    return {
        "warmup_share": min(1.0, recipe.warmup_steps / recipe.max_steps),
        "warmup_steps": math.log10(1 + recipe.warmup_steps),
        "batch_tokens": math.log10(recipe.batch_size * recipe.sequence_length),
        "decay": 1 - recipe.final_share,
        "adam_memory": -math.log10(1 - recipe.adam_beta2) if is_adam else math.nan,
        "adam_epsilon": _log(recipe.adam_epsilon) if is_adam else math.nan,
        "weight_decay": recipe.weight_decay,
        "clipping": 0.0 if recipe.max_grad_norm is None else 1.0,
        **{name: float(name == _column(spec)) for name in _OPTIMIZER_COLUMNS},
        "depth": _log(depth),
    }


def _column(spec: OptimizerSpec) -> str | None:
    """Return the column for an optimizer: its own, or else its family's."""
    return spec.feature or _FAMILY_COLUMNS.get(spec.family)


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
        "nonlinearity": mean("nonlinearity"),
        "update_ratio": _log(mean("update_ratio")),
    }


def _of_forward(forward: ForwardStats, rate: float) -> dict[str, float | None]:
    excess = None
    if forward.loss is not None and forward.uniform_loss is not None:
        excess = forward.loss - forward.uniform_loss
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
        "aligned_rate": _plus(rate, _log(forward.aligned_response)),
    }


def _of_response(response: ResponseProfile, rate: float) -> dict[str, float | None]:
    points = [p for p in response.points if math.isfinite(p.fresh)]
    best = min(points, key=lambda p: p.fresh).rate if points else None
    return {
        "update_rms_rate": _plus(rate, _log(response.update_rms)),
        "critical_rate": _over(rate, _crossing(response.points, "fresh", 0.0)),
        "rise_rate": _over(rate, _crossing(response.points, "fresh", 0.25)),
        "same_critical_rate": _over(rate, _crossing(response.points, "same", 0.0)),
        "same_rise_rate": _over(rate, _crossing(response.points, "same", 0.25)),
        "best_step_rate": _over(rate, _log(best)),
        "output_rate": _plus(rate, _log(response.output_slope)),
        "grad_norm": _log(response.grad_norm),
        "grad_rms": _log(response.grad_rms),
        "overshoot": response.overshoot,
    }


def _of_range_test(test: RangeTest, rate: float) -> dict[str, float | None]:
    return {
        "lowest_rate": _over(rate, _log(test.lowest_rate)),
        "early_rise_rate": _over(rate, _log(test.rate_of_rise(0.1))),
        "range_rise_rate": _over(rate, _log(test.rate_of_rise(0.25))),
        "late_rise_rate": _over(rate, _log(test.rate_of_rise(1.0))),
        "range_fall": test.fall,
        "range_rise": test.rise,
    }


def _crossing(points: tuple[ResponsePoint, ...], change: str, level: float) -> float | None:
    """Return log10 of the rate at which a change first rises past a level."""
    for left, right in pairwise(points):
        before, after = getattr(left, change), getattr(right, change)
        if after < level:
            continue
        low, high = math.log10(left.rate), math.log10(right.rate)
        if before >= level or not math.isfinite(after):
            return low if before >= level else high
        return low + (high - low) * (level - before) / (after - before)
    return None


def _log(value: float | None) -> float | None:
    return math.log10(value) if value is not None and 0 < value < math.inf else None


def _over(rate: float, log_limit: float | None) -> float | None:
    return None if log_limit is None else rate - log_limit


def _plus(rate: float, log_gain: float | None) -> float | None:
    return None if log_gain is None else rate + log_gain


def _number(value: float | None) -> float:
    return math.nan if value is None or not math.isfinite(value) else float(value)
