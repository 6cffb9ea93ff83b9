"""The range test: its reading of curves, and that it leaves nothing behind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rksp.datasets.tasks import make_task
from rksp.measure.lr_range import STEPS, RangeStatus, range_test, summarize
from rksp.models.zoo import build_member
from rksp.recipe import Recipe

RATES = np.logspace(-5, 0, 41)


def _curve(turn: float) -> np.ndarray:
    """A loss that falls by a nat towards a rate and rises three times as fast after it."""
    x = np.log10(RATES) - turn
    return 3.0 + np.where(x < 0, -x * 0.3, 0.9 * x)


@pytest.mark.parametrize("turn", [-3.0, -2.0, -1.0])
def test_the_lowest_rate_is_where_the_curve_turns(turn):
    test = summarize(RATES, _curve(turn))
    assert abs(math.log10(test.lowest_rate) - turn) <= 0.3


def test_a_rise_comes_later_the_higher_it_is():
    test = summarize(RATES, _curve(-3.0))
    rates = [test.rate_of_rise(nats) for nats in (0.1, 0.25, 1.0)]
    assert rates == sorted(rates)
    assert rates[0] > test.lowest_rate


def test_a_curve_that_only_falls_never_rises():
    test = summarize(RATES, np.linspace(4.0, 2.0, 41))
    assert test.rate_of_rise(0.1) is None
    assert test.fall > 1.5
    assert test.rise == 0.0


def test_a_non_finite_loss_is_a_rise_without_end():
    losses = np.linspace(4.0, 3.0, 41)[:20]
    losses[-1] = math.nan
    test = summarize(RATES[:20], losses)
    assert test.rise == math.inf
    assert test.rate_of_rise(100.0) == RATES[19]


@pytest.mark.parametrize("losses", [[math.nan], [math.inf, math.nan]])
def test_a_curve_without_a_finite_loss_has_a_status(losses):
    test = summarize(RATES[: len(losses)], np.array(losses))
    assert test.status is RangeStatus.NO_FINITE_LOSS
    assert (test.fall, test.rise, test.lowest_rate) == (0.0, math.inf, RATES[0])
    assert test.rate_of_rise(0.1) == RATES[0]
    assert summarize(RATES, _curve(-3.0)).status is RangeStatus.OK


def test_forty_real_steps_leave_the_weights_bitwise():
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = build_member("zoo_no_norm", shape | {"max_position_embeddings": 16}, seed=0)
    before = [p.detach().clone() for p in model.parameters()]
    batches = make_task("bytes", length=16).batches(STEPS, 4, seed=0)
    test = range_test(model, batches, Recipe())
    assert 10 < len(test.losses) <= STEPS
    assert test.fall > 0.3  # it trains
    assert test.rise > 0.3  # and a rate of one breaks it
    assert test.rates[0] == pytest.approx(1e-5)
    assert all(torch.equal(p, p0) for p, p0 in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())
