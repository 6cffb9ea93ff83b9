"""The metrics of probabilities: known answers."""

from __future__ import annotations

import numpy as np
import pytest

from lab.fit.metrics import bootstrap, difference
from rksp.classifiers.metrics import auroc, ece


def test_ece_of_a_calibrated_and_of_an_overconfident_predictor():
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    y = rng.random(20_000) < p
    assert ece(y, p) < 0.02
    assert ece(y, (p > 0.5).astype(float)) == pytest.approx(0.25, abs=0.02)


def test_bootstrap_over_ladders_is_wider_than_over_rows():
    """Rows of one group are copies: the honest interval knows it."""
    rng = np.random.default_rng(0)
    value = np.repeat(rng.normal(size=40), 25)
    grouped = bootstrap(lambda rows: value[rows].mean(), np.repeat(np.arange(40), 25))
    single = bootstrap(lambda rows: value[rows].mean(), np.arange(1000))
    assert grouped[1] - grouped[0] > 3 * (single[1] - single[0])


def test_the_difference_of_two_rankings_is_that_of_their_areas():
    y = np.array([0, 0, 1, 1])
    found = difference(y, np.array([1, 2, 3, 4]), np.array([1, 3, 2, 4]), np.arange(4))
    assert found.value == pytest.approx(auroc(y, np.array([1, 2, 3, 4])) - 0.75)
    assert found.low <= found.value <= found.high
