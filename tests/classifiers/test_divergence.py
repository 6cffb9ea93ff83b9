"""P(diverged): from which rate runs diverge, apart from those that only end higher."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.edge_cases import inputs, ladder, ladders

from lab.fit.artifacts import artifact_json
from lab.fit.edge_fit import fit_edge_model
from lab.fit.edge_ladder import EdgeLadder
from rksp.classifiers.edge_model import ARTIFACT, EdgeModel, load_edge_model
from rksp.ground.errors import ArtifactError

RATES = 10.0 ** np.arange(-5, 2, 0.25)


def _diverging(x: EdgeLadder, above: float) -> EdgeLadder:
    """Return the ladder whose runs diverge only from some decades above its edge on."""
    return replace(x, diverged=x.failed & (x.rates > x.edge + above))


@pytest.fixture(scope="module")
def apart() -> EdgeModel:
    return fit_edge_model([_diverging(x, 0.9) for x in ladders()])


def test_a_ladder_tells_between_which_rates_its_runs_begin_to_diverge():
    x = ladder(0, -2.2)
    assert x.divergence == (x.low, x.high)
    low, high = _diverging(x, 0.9).divergence
    assert low < x.edge + 0.9 <= high and high - low == pytest.approx(0.5)
    assert _diverging(x, 9.0).divergence == (x.rates[-1], math.inf)
    assert replace(x, diverged=np.ones_like(x.failed)).divergence == (-math.inf, x.rates[0])


def test_what_failed_in_an_unknown_way_bounds_divergence_from_below_alone():
    x = replace(ladder(0, -2.2), diverged=None)
    assert x.divergence == (x.low, math.inf)
    assert replace(x, low=-math.inf, best=None).divergence == (-math.inf, math.inf)


def test_the_rate_from_which_runs_diverge_is_found_apart_from_the_edge(apart):
    for width in (64, 300, 1000):
        read = apart.predict(inputs(width))
        assert read.diverging.location == pytest.approx(0.9, abs=0.2)
        between = 10 ** (read.log_edge + 0.4)
        assert read.failed(between) > 0.9 and read.diverged(between) < 0.2


def test_where_all_failing_runs_diverge_both_chances_are_alike():
    read = fit_edge_model(ladders()).predict(inputs(256))
    assert read.diverging.location == pytest.approx(0.0, abs=0.1)
    assert all(abs(read.diverged(rate) - read.failed(rate)) < 0.12 for rate in RATES)


def test_divergence_is_a_part_of_failure_and_rises_with_the_rate(apart):
    for model in (apart, load_edge_model()):
        read = model.predict(inputs(256))
        chances = [read.diverged(rate) for rate in RATES]
        assert all(a <= b for a, b in pairwise(chances))
        assert all(p <= read.failed(rate) for p, rate in zip(chances, RATES, strict=True))
        assert chances[0] < 0.01 and chances[-1] > 0.9


def test_a_family_that_diverges_early_has_an_offset_of_its_own():
    early = [_diverging(x, 0.1 if x.group == "family-1" else 0.9) for x in ladders()]
    model = fit_edge_model(early)
    gaps = {
        name: model.predict(inputs(256, family=name)).diverging.location
        for name in ("family-0", "family-1", "family-2")
    }
    assert gaps["family-1"] < min(gaps["family-0"], gaps["family-2"]) - 0.3


def test_divergence_moves_with_an_edge_that_own_runs_or_levers_move(apart):
    read = apart.predict(inputs(256))
    moved = replace(read, edge=read.edge.moved(0.5))
    rate = 10 ** (read.log_edge + 0.9)
    assert moved.diverged(rate * 10**0.5) == pytest.approx(read.diverged(rate), abs=1e-6)
    assert moved.diverged(rate) < read.diverged(rate)


def test_an_artifact_whose_divergence_is_damaged_is_refused(apart):
    text = artifact_json(apart)
    assert ARTIFACT.parse(text) == apart
    damaged = text.replace('"divergence": {', '"divergence": {"line": 1, "x": {', 1)
    with pytest.raises(ArtifactError):
        ARTIFACT.parse(damaged)


def test_what_nothing_normalizes_diverges_as_it_fails():
    """Nearly all of the lab's failures without norms are divergence."""
    bare = load_edge_model().predict(inputs(norm="none"))
    normal = load_edge_model().predict(inputs())
    share = lambda said: said.diverged(said.likely_edge) / said.failed(said.likely_edge)
    assert share(bare) > 0.9 > 2 * share(normal)
