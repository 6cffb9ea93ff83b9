"""The feature vector: frozen names, shifts with the rate, missing is missing."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from rksp.features import FEATURE_NAMES, FEATURES, SCHEMA, Tier, columns, extract
from rksp.measure.lr_range import summarize
from rksp.measure.response import ResponsePoint, ResponseProfile
from rksp.recipe import Recipe

# A change here breaks stored classifiers and collections: give SCHEMA a new name, refit, and say
# so in classifiers/README.md.
FROZEN = [
    "rate",
    "warmup_share",
    "warmup_steps",
    "batch_tokens",
    "decay",
    "adam_memory",
    "adam_epsilon",
    "weight_decay",
    "clipping",
    "is_sgd",
    "is_lion",
    "is_adafactor",
    "is_muon",
    "depth",
    "near_unit_mass",
    "expansive_mass",
    "spectral_radius",
    "eigenvector_condition",
    "nonnormality",
    "energy_gain",
    "nonlinearity",
    "update_ratio",
    "residual_growth",
    "excess_initial_loss",
    "logit_std",
    "attention_logit_std",
    "attention_entropy",
    "aligned_rate",
    "update_rms_rate",
    "critical_rate",
    "rise_rate",
    "same_critical_rate",
    "same_rise_rate",
    "best_step_rate",
    "output_rate",
    "grad_norm",
    "grad_rms",
    "overshoot",
    "lowest_rate",
    "early_rise_rate",
    "range_rise_rate",
    "late_rise_rate",
    "range_fall",
    "range_rise",
]


def _response(points: list[tuple[float, float, float]]) -> ResponseProfile:
    return ResponseProfile(
        loss=5.0,
        grad_norm=2.0,
        grad_rms=0.01,
        grad_max=0.5,
        update_rms=1.0,
        descent=3.0,
        critical_rate=1e-2,
        output_slope=30.0,
        overshoot=1.5,
        points=tuple(
            ResponsePoint(rate=rate, same=same, fresh=fresh, output=0.1)
            for rate, same, fresh in points
        ),
        forward_passes=8.0,
    )


POINTS = [(1e-4, -0.01, -0.01), (1e-3, -0.1, -0.05), (1e-2, 0.1, 0.2), (1e-1, 2.0, 3.0)]


def test_names_and_order_are_frozen():
    assert list(FEATURE_NAMES) == FROZEN
    assert SCHEMA == "features-1"


def test_tiers_nest():
    sets = [set(columns(tier)) for tier in Tier]
    assert all(small < large for small, large in pairwise(sets))
    assert sets[-1] == set(range(len(FEATURES)))


def test_the_same_run_at_another_rate_is_a_shift():
    kwargs = {"depth": 4, "response": _response(POINTS)}
    slow = extract(Recipe(learning_rate=1e-4), **kwargs)
    fast = extract(Recipe(learning_rate=1e-2), **kwargs)
    assert np.allclose(slow.at(1e-2).values, fast.values, equal_nan=True)
    moved = {FEATURE_NAMES[i] for i in np.flatnonzero(slow.values != fast.values)}
    assert moved >= {"rate", "critical_rate", "output_rate"}
    assert moved - {f.name for f in FEATURES if f.follows_rate} <= {
        f.name for f in FEATURES if math.isnan(slow[f.name])
    }


def test_what_was_not_measured_is_missing_and_never_zero():
    vector = extract(Recipe(learning_rate=1e-3), depth=4)
    assert vector.tier is Tier.CONFIG
    unmeasured = [f.name for f in FEATURES if f.tier > Tier.CONFIG]
    assert all(math.isnan(vector[name]) for name in unmeasured)
    assert not math.isnan(vector["depth"])


def test_adam_fields_are_missing_where_there_is_no_adam():
    vector = extract(Recipe(learning_rate=1e-3, optimizer="sgd"), depth=4)
    assert math.isnan(vector["adam_memory"])
    assert vector["is_sgd"] == 1.0


def test_crossings_are_interpolated_between_points():
    vector = extract(Recipe(learning_rate=1.0), depth=4, response=_response(POINTS))
    # the fresh loss passes 0 a fifth of the way from 1e-3 to 1e-2
    assert -vector["critical_rate"] == pytest.approx(-3 + 0.05 / 0.25)
    assert -vector["same_critical_rate"] == pytest.approx(-2.5)
    # and 0.25 just above 1e-2
    assert -vector["rise_rate"] == pytest.approx(-2 + 0.05 / 2.8)


def test_a_loss_that_overflows_crosses_at_the_overflow():
    points = [*POINTS[:2], (1e-2, math.nan, math.inf)]
    vector = extract(Recipe(learning_rate=1.0), depth=4, response=_response(points))
    assert -vector["critical_rate"] == pytest.approx(-2.0)


def test_range_test_features_follow_its_rates():
    rates = np.logspace(-5, 0, 41)
    test = summarize(rates, 3 + np.abs(np.log10(rates) + 2))
    vector = extract(
        Recipe(learning_rate=1e-2), depth=4, response=_response(POINTS), range_test=test
    )
    assert vector.tier is Tier.MICRO
    assert abs(vector["lowest_rate"]) < 0.2  # the recipe stands at the turn
    assert vector["late_rise_rate"] < vector["range_rise_rate"] < vector["lowest_rate"]
