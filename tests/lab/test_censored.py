"""Regression on values of which an interval is known: open ends, signs, priors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.fit.censored import fit_censored


def _fit(low, high, x=None):
    count = len(low)
    return fit_censored(
        np.zeros((count, 1)) if x is None else x,
        np.array(low),
        np.array(high),
        weights=np.ones(count),
        kinds=np.zeros(count, int),
        groups=[""] * count,
        group_spread=0.3,
        signs=[-1],
    )


def test_a_ladder_that_never_failed_raises_the_edge_and_no_more():
    closed = _fit([0.0] * 20, [1.0] * 20)
    open_above = _fit([0.0] * 20 + [3.0] * 5, [1.0] * 20 + [math.inf] * 5)
    vacuous = _fit([0.0] * 20 + [-9.0] * 5, [1.0] * 20 + [math.inf] * 5)
    assert closed.intercept == pytest.approx(0.5, abs=0.01)
    assert open_above.intercept > 1
    assert vacuous.intercept == pytest.approx(0.5, abs=0.01)


def test_a_coefficient_does_not_change_the_sign_it_may_have():
    x = np.linspace(0, 1, 30)[:, None]
    assert _fit(x[:, 0].tolist(), (x[:, 0] + 0.5).tolist(), x).coefficients[0] == 0


def test_a_column_of_a_kind_that_few_ladders_show_stays_near_its_prior():
    x = np.zeros((40, 1))
    x[0] = 1.0
    low = np.where(x[:, 0] == 1, 2.0, -0.1)
    fit = lambda priors: fit_censored(
        x,
        low,
        low + 0.2,
        weights=np.ones(40),
        kinds=np.zeros(40, int),
        groups=[""] * 40,
        group_spread=0.3,
        signs=[0],
        priors=priors,
    )
    assert fit([0.01]).coefficients[0] < 0.2 < 1.0 < fit([10.0]).coefficients[0]


def test_the_order_of_the_rows_moves_no_digit_that_an_artifact_keeps():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 12)) + 0.01 * rng.normal(size=(400, 12))
    truth = x @ rng.normal(size=12) * 0.1 + rng.normal(size=400) * 0.3
    low = np.floor(truth / 0.2) * 0.2
    high = np.where(rng.random(400) < 0.3, math.inf, low + 0.2)

    def fit(order):
        return fit_censored(
            x[order],
            low[order],
            high[order],
            weights=np.ones(400),
            kinds=(np.arange(400) % 2)[order],
            groups=[f"source {number % 5}" for number in order],
            group_spread=0.3,
            signs=[0] * 12,
        )

    one, other = fit(np.arange(400)), fit(rng.permutation(400))
    assert other.coefficients == pytest.approx(one.coefficients, rel=0, abs=1e-10)
    assert other.spreads == pytest.approx(one.spreads, rel=0, abs=1e-10)
    assert other.intercept == pytest.approx(one.intercept, rel=0, abs=1e-10)
