"""The answer: ordered in the rate, modest about what it has not seen, frozen to its data."""

from __future__ import annotations

import pytest

from rksp.batch import Batch
from rksp.classifiers.classifier import load_classifier
from rksp.datasets.tasks import make_task
from rksp.features import Tier, extract
from rksp.lab.collection import read_collection
from rksp.lab.training_table import training_table, unpack_measurements
from rksp.measure.response import measure_response
from rksp.models.zoo import build_member
from rksp.recipe import Recipe
from rksp.risk import Verdict, assess
from rksp.spectra.model_profile import Profile, profile

SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 32}


def _evidence(family: str) -> tuple[Profile, object, Batch]:
    model = build_member(family, SHAPE, seed=0)
    batches = make_task("bytes", length=32).batches(3, 16, seed=0)
    return profile(model, batches[0]), measure_response(model, *batches[1:], Recipe()), batches[0]


def _assess(family: str, rate: float | None, *, doubts: tuple[str, ...] = ()):
    seen, response, _ = _evidence(family)
    features = extract(
        Recipe(learning_rate=rate or 1.0),
        depth=4,
        forward=seen.forward,
        spectra=seen.spectra,
        response=response,
    )
    return assess(features, load_classifier(), learning_rate=rate, doubts=doubts)


def test_two_rates_of_one_model_are_ordered_and_safe_lies_below_the_edge():
    low, high = _assess("zoo_pre_ln", 1e-4), _assess("zoo_pre_ln", 3.0)
    assert low.failed.probability < 0.1 < 0.8 < high.failed.probability
    assert (low.verdict, high.verdict) == (Verdict.OK, Verdict.RISK)
    assert low.safe_learning_rate == high.safe_learning_rate
    assert low.safe_learning_rate < low.likely_edge
    assert low.counterfactual is None
    assert "would bring it under" in high.counterfactual


def test_contributions_are_the_log_odds_above_the_average():
    answer = _assess("zoo_pre_ln", 3.0)
    assert answer.contributions[0].feature == "learning_rate"
    assert answer.contributions[0].log_odds > 1


def test_zero_initialized_branches_are_not_called_risky_for_their_spectrum():
    """A ≈ I looks maximally near-unit; at a modest rate the answer stays low."""
    seen, _, _ = _evidence("zoo_zero_init")
    assert seen.spectra.reading == "indeterminate"
    assert seen.spectra.published_score is None
    assert _assess("zoo_zero_init", 1e-4).failed.probability < 0.1


def test_doubts_make_the_verdict_indeterminate():
    answer = _assess("zoo_pre_ln", 3.0, doubts=("the spectrum is degenerate",))
    assert answer.verdict is Verdict.INDETERMINATE
    assert answer.reasons == ("the spectrum is degenerate",)


def test_the_recipe_alone_still_gives_an_answer():
    features = extract(Recipe(learning_rate=1e-4), depth=4)
    answer = assess(features, load_classifier(), learning_rate=1e-4)
    assert answer.tier is Tier.CONFIG
    assert answer.failed.probability < 0.2


def test_the_shipped_classifier_was_fitted_on_the_shipped_data():
    pytest.importorskip("pyarrow")
    measured = unpack_measurements()
    ladders = [run for run in read_collection() if run.spec.id in measured]
    table = training_table(ladders, measured)
    card = load_classifier().card
    assert card["data"] == table.digest
    assert card["runs"] == len(table)
