"""The lab's ladders as the model of fine-tuning sees them, and what measuring them adds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from lab.fine_tuning_fit.left_out import LeftOut
from lab.fine_tuning_fit.scores import edge_score, nats_score
from lab.ladders.fine_tuning.as_ladders import SOURCE, as_ladder, as_ladders
from lab.ladders.fine_tuning.evidence import as_card, what_measuring_adds
from lab.ladders.fine_tuning.summary import summarize
from lab.ladders.fine_tuning.table import read_fine_tuning
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs, decades_outside
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.own_runs.outcome import OutcomePolicy

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def ladders():
    return read_fine_tuning()


def drifting(ladders, drift):
    """The ladders with another drift, from the rate at which each begins to forget."""
    found = []
    for ladder in ladders:
        first = summarize(ladder).first_forgetting
        measured = ladder.measured | {"drift_1e-03": None if first is None else drift(first)}
        found.append(replace(ladder, measured=measured))
    return found


def helped(ladders) -> set[tuple[str, str]]:
    rows = what_measuring_adds(ladders)
    return {
        (row.method, row.rate) for row in rows if row.measured == ("drift_1e-03",) and row.helps
    }


def test_a_measurement_that_knows_the_rate_helps_and_one_by_chance_does_not(ladders):
    assert helped(drifting(ladders, lambda rate: rate**-2)) == {
        ("all", "forgetting"),
        ("lora", "forgetting"),
    }
    rng = np.random.default_rng(0)
    assert helped(drifting(ladders, lambda rate: 10 ** rng.normal())) == set()
    assert helped(drifting(ladders, lambda rate: 1.0)) == set()


def test_the_card_of_the_shipped_model_has_what_its_ladders_say(ladders):
    assert load_fine_tuning_model().card["measured"] == as_card(what_measuring_adds(ladders))


def test_a_ladder_keeps_its_best_rate_and_fails_where_others_lose_by_the_margin(ladders):
    margin = OutcomePolicy().margin
    for ladder in ladders:
        said, found = summarize(ladder), as_ladder(ladder)
        runs = dict(zip(found.rates, zip(found.results, found.failed, strict=True), strict=True))
        kept = [result for result, failed in runs.values() if not failed]
        assert runs[found.chosen] == (min(kept), False)
        lowest = min(result for result, _ in runs.values() if result is not None)
        for rate, (result, failed) in runs.items():
            is_lost = result is None or result > lowest + margin
            assert failed or not (is_lost and rate > math.log10(said.best) + 1e-9)
        assert found.untrained == ladder.before.new and found.inputs.source == SOURCE
        assert found.inputs.is_tiny and found.inputs.parameters <= ladder.base.parameters


def test_only_ladders_that_had_something_to_learn_are_fitted(ladders):
    kept = {ladder.name for ladder in as_ladders(ladders)}
    gains = {ladder.id: summarize(ladder).gain for ladder in ladders}
    assert 100 < len(kept) < len(ladders) and min(gains[name] for name in kept) >= 0.05


def test_on_the_labs_decoders_the_start_costs_little_and_never_more_than_not_training(ladders):
    model = load_fine_tuning_model()
    found = [
        LeftOut(ladder=x, estimate=model.predict(x.inputs), name=x.inputs.family)
        for x in as_ladders(ladders)
        if x.inputs.trained == "full" and x.inputs.kind == "decoder"
    ]
    texts = [x for x in found if x.ladder.inputs.objective == "next_token"]
    heads = [x for x in found if x.ladder.inputs.objective == "classification"]
    assert nats_score(texts).regret <= 0.03 and nats_score(texts).worse == 0
    assert nats_score(heads).worse <= 0.1 * len(heads)
    assert edge_score(texts).below > 0.9


def test_a_tiny_model_shares_no_level_with_the_others():
    model = load_fine_tuning_model()
    tiny = {name for name in model.mean if "tiny" in name}
    large = FineTuningInputs(family="llama", parameters=7e9)
    assert tiny and not any(name in tiny for name, _, _ in model.counted(large, "best"))
    small = replace(large, parameters=3e5)
    assert {name for name, _, _ in model.counted(small, "edge")} & set(model.mean) <= tiny
    assert decades_outside(small) == 0 < decades_outside(replace(small, parameters=2e6))
    assert math.isclose(decades_outside(replace(small, parameters=2e7)), math.log10(2))
