"""What own ladders make of the model of fine-tuning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import load_fine_tuning_model
from rksp.own_runs.informed import InformedTuning
from rksp.own_runs.observed import Tuned
from rksp.own_runs.record import Shape, shape_of
from rksp.recipe import Recipe
from rksp.recipe.start import Start

PRIOR = load_fine_tuning_model()
INPUTS = FineTuningInputs(
    method="lora",
    family="llama",
    parameters=7e9,
    rank=16.0,
)


def ladder(offset: float, inputs: FineTuningInputs = INPUTS) -> Tuned:
    """Return a ladder whose edge and best rate lie `offset` decades above what the model says."""
    said = PRIOR.predict(inputs)
    edge, best = said.log_edge + offset, said.log_best + offset
    rates = np.array([edge + 0.25 * (n + 0.5) for n in range(-6, 4)])
    return Tuned(
        name="ladder",
        inputs=inputs,
        log_rates=rates,
        failed=(rates > edge).astype(float),
        losses=1 + 0.2 * (rates - best) ** 2 + (rates > edge),
    )


def knowing(*seen: Tuned) -> InformedTuning:
    return InformedTuning(prior=PRIOR, seen=seen)


def test_without_runs_the_answer_is_the_shipped_one():
    assert knowing().predict(INPUTS) == PRIOR.predict(INPUTS)


@pytest.mark.parametrize("offset", [-0.4, 0.4])
def test_a_ladder_moves_its_checkpoint_most_and_never_beyond_what_it_shows(offset):
    model = knowing(ladder(offset))
    other = replace(INPUTS, family="qwen2", parameters=1e9)
    shift = {
        name: model.predict(of).log_edge - PRIOR.predict(of).log_edge
        for name, of in (("own", INPUTS), ("other", other))
    }
    assert 0 < shift["other"] / offset < shift["own"] / offset < 1
    own = model.predict(INPUTS)
    assert own.edge.spread < PRIOR.predict(INPUTS).edge.spread
    assert own.learned is not None and own.learned.shares == "ladder"


def test_more_ladders_say_more():
    one = knowing(ladder(0.3)).predict(INPUTS)
    larger = replace(INPUTS, rank=64.0)
    two = knowing(ladder(0.3), ladder(0.3, larger)).predict(INPUTS)
    assert one.log_edge < two.log_edge and two.edge.spread < one.edge.spread


def test_a_ladder_far_from_all_that_is_known_counts_for_little():
    here = PRIOR.predict(INPUTS).log_edge
    far = knowing(ladder(3.0)).predict(INPUTS).log_edge - here
    near = knowing(ladder(0.5)).predict(INPUTS).log_edge - here
    assert 0 <= far < near


def test_a_single_run_bounds_from_one_side():
    here = PRIOR.predict(INPUTS)
    lone = Tuned(
        name="run",
        inputs=INPUTS,
        log_rates=np.array([here.log_edge + 0.2]),
        failed=np.array([0.0]),
        losses=np.array([1.0]),
    )
    assert lone.best is None and lone.edge == (here.log_edge + 0.2, math.inf)
    assert knowing(lone).predict(INPUTS).log_edge > here.log_edge


def test_a_flat_bottom_leaves_the_best_rate_open():
    steep = ladder(0.0)
    flat = replace(steep, losses=np.where(steep.failed == 1, 2.0, 1.0))
    widths = [one.best[1] - one.best[0] for one in (steep, flat) if one.best]
    assert widths[1] > widths[0]


def test_a_ladder_of_a_run_alike_covers_it():
    unlisted = replace(INPUTS, objective="preference")
    assert not knowing(ladder(0.0)).predict(unlisted).learned.covers
    assert knowing(ladder(0.0, unlisted)).predict(unlisted).learned.covers


def test_a_record_of_trained_weights_holds_what_the_model_of_fine_tuning_asks():
    from transformers import GPT2Config

    recipe = Recipe(peft="lora", lora_rank=8)
    shape = shape_of(
        GPT2Config(n_layer=2, n_embd=32),
        "causal-lm",
        recipe,
        Start(kind="elsewhere", because="a test"),
    )
    assert shape is not None and Shape.read(shape.columns()) == shape
    found = shape.tuned(recipe)
    assert (found.kind, found.family, found.method, found.rank) == ("decoder", "gpt2", "lora", 8)
    assert found.parameters == pytest.approx(12 * 2 * 32**2, rel=0.1)
