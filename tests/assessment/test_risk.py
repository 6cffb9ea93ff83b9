"""The answer: ordered in the rate, modest about what it has not seen, frozen to its data."""

from __future__ import annotations

import dataclasses
import math

import pytest
from support.edge_cases import inputs

from lab.fit.edge_ladder import LAB
from lab.ladders.edge_ladders import edge_ladders
from rksp.assessment.risk import About, Basis
from rksp.classifiers.edge_model import load_edge_model
from rksp.documents.terms import Terms
from rksp.documents.verdict import Verdict
from rksp.spectra.features import FEATURES, Features, Tier, extract

REAL = inputs(4096, depth=32, vocabulary=32000, batch_tokens=4e6, steps=250_000, warmup_steps=2000)


def _assess(rate: float | None, given=REAL, **more):
    features = more.pop("features", extract())
    doubts = more.pop("doubts", ())
    terms = more.pop("terms", Terms())
    about = About(learning_rate=rate, steps=given.steps, tier=features.tier, terms=terms)
    return Basis.of(features, given, load_edge_model(), doubts).answer(about, **more)


def test_the_verdict_goes_from_ok_over_caution_to_risk():
    asked = _assess(None)
    between = math.sqrt(asked.do_not_exceed * asked.likely_edge)
    low, middle, high = _assess(3e-4), _assess(between), _assess(1e-2)
    assert (low.verdict, high.verdict) == (Verdict.OK, Verdict.RISK)
    assert middle.verdict is Verdict.CAUTION
    assert middle.do_not_exceed < between < middle.likely_edge
    assert low.probability_failed < 0.05 < middle.probability_failed < 0.5
    assert low.start_here < low.do_not_exceed < low.likely_edge


SHORT = dataclasses.replace(
    REAL, width=768, depth=12, steps=100, warmup_steps=0, batch_tokens=8e3, family="llama"
)


def test_risk_moves_x_and_with_it_the_word():
    rate = 1.2 * _assess(None, SHORT).do_not_exceed
    bold = Terms(risk=0.45)
    assert _assess(rate, SHORT).verdict is Verdict.CAUTION
    assert _assess(rate, SHORT, terms=bold).verdict is Verdict.OK
    assert _assess(rate, SHORT, terms=bold).do_not_exceed > rate


def test_the_answer_names_what_widens_its_interval():
    known = _assess(1e-3, dataclasses.replace(SHORT, family="llama"))
    unknown = _assess(1e-3, dataclasses.replace(SHORT, family="never-seen", optimizer="muon"))
    assert max(known.widened_by.values(), default=0) < 0.1
    assert min(unknown.widened_by[name] for name in ("family", "optimizer")) > 0.1


def test_advice_never_names_the_rate_it_corrects():
    start = _assess(None, SHORT).start_here
    bar = _assess(0.5 * start, SHORT).probability_failed / 2  # even half of S is above it
    for factor in (0.5, 0.99, 1.0, 1.01, 3.0):
        answer = _assess(factor * start, SHORT, terms=Terms(fail_on=[str(bar)]))
        named = "Start at" in answer.counterfactual
        assert not named
        assert "only below" in answer.counterfactual
    sure = _assess(10 * start, SHORT, terms=Terms(fail_on=["0.3"]))
    assert sure.counterfactual.startswith("Start at")


def test_a_probability_just_under_the_bar_is_never_green():
    edge = _assess(3e-4).likely_edge
    answer = _assess(0.92 * edge)
    assert 0.4 < answer.probability_failed < 0.5
    assert answer.verdict is Verdict.CAUTION


def test_a_rate_far_below_the_start_is_told_what_it_costs():
    answer = _assess(3e-6)
    assert answer.verdict is Verdict.OK
    assert "times lower than the one to start with" in answer.counterfactual
    assert "nats more" in answer.counterfactual
    assert _assess(answer.start_here).counterfactual is None


def test_a_published_recipe_that_trained_well_is_ok():
    answer = _assess(3e-4)  # LLaMA-7B
    assert answer.verdict is Verdict.OK
    assert 1 / 3 < answer.start_here / 3e-4 < 3


def test_contributions_say_what_moves_the_edge():
    answer = _assess(3e-4)
    assert answer.contributions[0].feature == "width"
    assert answer.contributions[0].decades < -1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"norm": "none"}, "have no normalization"),
        ({"optimizer": "lamb"}, "optimizer lamb"),
        ({"width": 200_000}, "the width lies a factor of"),
    ],
)
def test_beyond_the_labelled_runs_it_cannot_tell(change, reason):
    answer = _assess(3e-4, dataclasses.replace(REAL, **change))
    assert answer.verdict is Verdict.CANNOT_TELL
    assert reason in answer.reasons[0]


def test_doubts_of_the_evidence_make_the_verdict_cannot_tell():
    answer = _assess(1e-2, doubts=("the spectrum is degenerate",))
    assert (answer.verdict, answer.reasons) == (
        Verdict.CANNOT_TELL,
        ["the spectrum is degenerate"],
    )


def test_the_recipe_alone_gives_an_answer_and_no_rate_gives_the_three():
    assert _assess(1e-4).evidence == str(Tier.CONFIG)
    answer = _assess(None)
    assert answer.probability_failed is answer.expected_excess is None
    assert answer.start_failed < 0.1


@pytest.mark.parametrize("name", ["nonlinearity", "grad_norm"])
def test_a_feature_like_that_of_no_labelled_run_makes_it_doubt(name):
    low, high = load_edge_model().measured_ranges[name]
    answers = [
        _assess(3e-4, features=_measured({name: high + widths * (high - low)}))
        for widths in (-0.5, 2.9, 3.1)
    ]
    assert [answer.verdict is Verdict.CANNOT_TELL for answer in answers] == [False, False, True]
    assert answers[2].reasons == [f"{FEATURES[name]} lies 3.1 ranges outside the labelled runs"]


def _measured(values: dict[str, float]) -> Features:
    return Features(values=extract().values | values, tier=Tier.GRADIENT)


def test_the_shipped_model_was_fitted_on_the_shipped_lab():
    pytest.importorskip("pyarrow")
    lab = [x for x in edge_ladders() if x.source == LAB]
    model = load_edge_model()
    assert model.card["ladders"][LAB] == len(lab)
    assert set(model.measured_ranges) == set(FEATURES)
