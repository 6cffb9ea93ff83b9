"""A run that fails diverges or ends high: the page says which of the two is likelier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.laws import MODELS, inputs

from lab.fit.lapses import Said, power_of
from rksp.classifiers.edge_model import load_edge_model
from rksp.classifiers.rates import powered
from rksp.documents.answer import CertainFailure
from rksp.documents.verdict import Verdict


@pytest.mark.parametrize("number", range(60))
def test_divergence_is_a_part_of_failing_and_the_rest_ends_high(number):
    draw, model = np.random.default_rng(number), load_edge_model()
    run = inputs(str(draw.choice([*MODELS])), int(10 ** draw.uniform(2, 5)))
    said = model.predict(run)
    for rate in 10 ** draw.uniform(-5, 1, 6):
        failed, diverged = said.failed(rate), said.diverged(rate)
        assert 0 <= diverged <= failed
        assert diverged >= said.least_diverged * failed - 1e-12


def test_the_longer_a_run_the_more_of_its_failures_diverge():
    model = load_edge_model()
    shares = []
    for steps in (300, 3_000, 30_000):
        said = model.predict(inputs("gpt2", steps))
        shares.append(said.diverged(3 * said.likely_edge) / said.failed(3 * said.likely_edge))
    assert shares == sorted(shares) and shares[0] < shares[-1]


def test_a_power_pulls_shares_toward_a_half_and_is_found_again():
    assert powered(0.2, 1) == 0.2 and powered(0.5, 0.7) == pytest.approx(0.5)
    assert 0.2 < powered(0.2, 0.7) < 0.5 < powered(0.8, 0.7) < 0.8
    draw = np.random.default_rng(0)
    shares = draw.uniform(0.02, 0.98, 20_000)
    came = draw.uniform(size=len(shares)) < [powered(share, 0.6) for share in shares]
    runs = [Said(share=s, failed=bool(c), weight=1.0) for s, c in zip(shares, came, strict=True)]
    assert power_of(runs) == pytest.approx(0.6, abs=0.05)


def test_an_answer_names_the_likelier_ending():
    stated = {"evidence": "config", "horizon_steps": 100, "risk": 0.2, "threshold": 0.5}
    one = CertainFailure(**stated, verdict=Verdict.RISK, counterfactual="", probability_failed=0.8)
    told = lambda chance: one.model_copy(update={"probability_diverged": chance}).feared
    assert told(None) == ""
    assert "diverge" in told(0.5) and "ends high" in told(0.3)
    hardly = one.model_copy(update={"probability_failed": 0.006, "probability_diverged": 0.004})
    rarely = one.model_copy(update={"probability_failed": 0.06, "probability_diverged": 0.04})
    assert (hardly.feared, rarely.feared[:11]) == ("", "if it fails")


def test_the_power_of_the_shipped_model_is_no_identity():
    """The negative control: with another power P(diverged) is another, and P(failed) the same."""
    model = load_edge_model()
    other = replace(model, divergence=replace(model.divergence, power=1.0))
    run = inputs("gpt2", 3_000)
    one, two = (m.predict(run) for m in (model, other))
    rate = one.likely_edge
    assert one.failed(rate) == two.failed(rate) and one.diverged(rate) != two.diverged(rate)
