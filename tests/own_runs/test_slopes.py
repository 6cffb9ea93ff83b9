"""How errors change with the size: what several ladders of a team say of it together."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge_cases import inputs
from support.past_runs import team_ladder

from rksp.classifiers.edge_model import load_edge_model
from rksp.own_runs import informed as module
from rksp.own_runs.informed import InformedModel
from rksp.own_runs.observed import Observed, path_of
from rksp.own_runs.offsets import GRID
from rksp.own_runs.slopes import learned_slopes
from rksp.own_runs.spreads import Spreads

SPREADS = Spreads(weights=(1.0,), between=(0.3,), outer=(0.5, 0.4, 0.1), within=0.2)
SHAPE = {"width": 512, "steps": 20_000, "warmup_steps": 500}
BATCHES = (3e4, 6e4, 1.2e5, 2.5e5, 5e5, 1e6)


def known(*seen: Observed) -> InformedModel:
    return InformedModel(prior=load_edge_model(), family="gpt2", seen=seen)


def leaning(slope: float, batches=BATCHES) -> list[Observed]:
    """Ladders whose best rates lie off by so much a decade of the batch."""
    return [
        team_ladder(slope * np.log10(b / 2e5), name=f"{b:g}-{w}", width=w, batch_tokens=b)
        for b in batches
        for w in (384, 512, 640)
    ]


def test_slopes_agree_with_the_algebra_of_normal_distributions():
    places = [path_of(f, inputs(width=w)) for f, w in (("gpt2", 256), ("gpt2", 512), ("llama", 99))]
    target = path_of("gpt2", inputs(width=512, warmup_steps=7))
    away = np.array([[0.5, 0.0, 1.0], [-0.5, 0.2, 0.0], [1.0, 0.3, -0.7]])
    means, noise, prior = np.array([0.4, -0.1, 0.2]), 0.1, np.array([0.3, 0.15, 0.3])
    extra = np.array([0.0, 0.01, 0.02])
    values = np.exp(-0.5 * ((GRID - means[:, None]) / noise) ** 2)
    found = learned_slopes(values, places, target, away, extra, SPREADS, prior)

    levels = [0.09 * share for share in SPREADS.outer] + [SPREADS.model**2, SPREADS.ladder**2]
    shared = lambda a, b: sum(v for n, v in enumerate(levels) if a[:n] == b[:n])
    covariance = np.array([[shared(a, b) for b in places] for a in places])
    covariance += np.diag(noise**2 + extra)
    cross = np.array([shared(target, place) for place in places])
    whole = covariance + (away * prior**2) @ away.T
    slopes = (away * prior**2).T @ np.linalg.solve(whole, means)
    assert found.shifts == pytest.approx(away @ slopes, abs=2e-3)
    left = np.diag(prior**2) - (away * prior**2).T @ np.linalg.solve(whole, away * prior**2)
    weights = away.T @ np.linalg.solve(covariance, cross)
    assert found.unsure == pytest.approx(np.sqrt(weights @ left @ weights), rel=0.02)


def test_a_trend_over_the_batch_is_carried_on(monkeypatch):
    asked = inputs(**SHAPE, batch_tokens=4e6)
    said = load_edge_model().predict(asked).log_best
    true = 0.4 * np.log10(4e6 / 2e5)
    with_slopes = known(*leaning(0.4)).predict(asked).log_best - said
    monkeypatch.setattr(module, "BEST_SLOPES", (0.0, 0.0, 0.0))
    without = known(*leaning(0.4)).predict(asked).log_best - said
    assert abs(with_slopes - true) < abs(without - true) - 0.15
    assert 0.4 * true < with_slopes < 1.1 * true


def test_no_trend_is_made_where_there_is_none():
    asked = inputs(**SHAPE, batch_tokens=4e6)
    said = load_edge_model().predict(asked).log_best
    assert abs(known(*leaning(0.0)).predict(asked).log_best - said) < 0.03


def test_many_ladders_of_one_batch_do_not_tell_of_another():
    """Were each ladder off for itself, forty of them would leave nothing unknown."""
    asked = lambda batch: inputs(**SHAPE, batch_tokens=batch)
    alike = lambda count: known(
        *(team_ladder(0.0, name=f"{w}", width=w, batch_tokens=3e5) for w in range(500, 500 + count))
    )
    spread = lambda count, batch: alike(count).predict(asked(batch)).best.spread
    near, far = spread(40, 3e5), spread(40, 3e7)
    assert far > near + 0.05
    assert far > spread(2, 3e7) * 0.85


def test_no_ladders_no_slopes():
    lone = team_ladder(0.0, rungs=[-2])
    found = known(lone).predict(inputs(**SHAPE))
    assert np.isfinite(found.log_best) and not lone.is_ladder


@pytest.mark.parametrize("offset", [-0.6, -0.3, 0.0, 0.3, 0.6])
def test_a_known_offset_lies_within_its_interval(offset):
    ladders = [team_ladder(offset, name=str(w), width=w) for w in (256, 384, 640)]
    asked = inputs(**(SHAPE | {"width": 1024}))
    said, found = load_edge_model().predict(asked), known(*ladders).predict(asked)
    for before, after in ((said.edge, found.edge), (said.best, found.best)):
        assert 0.05 < after.below(10 ** (before.location + offset)) < 0.95
        assert after.spread < before.spread
        assert abs(after.location - before.location - offset) <= 0.6 * abs(offset) + 0.02


@pytest.mark.parametrize("odd", [0.3, 0.6, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("side", [-1, 1])
def test_one_odd_ladder_cannot_mislead(odd, side):
    """However far off it is, beside three that agree it moves neither rate by a fifth of a decade.

    From a decade and a half on it is taken for another metric, and moves nothing.
    """
    agreeing = [team_ladder(-0.2, name=str(w), width=w) for w in (256, 384, 512)]
    mad = team_ladder(-0.2 + side * odd, name="odd", width=640)
    asked = inputs(**(SHAPE | {"width": 1024}))
    without, beside = known(*agreeing).predict(asked), known(*agreeing, mad).predict(asked)
    most = 0.02 if odd >= 2 else 0.2
    assert abs(beside.log_edge - without.log_edge) < most
    assert abs(beside.log_best - without.log_best) < most
