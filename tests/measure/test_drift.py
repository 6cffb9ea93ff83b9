"""The drift of trained weights, and the response in the space that is trained."""

from __future__ import annotations

import copy

import pytest
import torch
from support.tiny_models import TOKENS, tiny

from rksp.assessment.evidence import first_step
from rksp.assessment.pipeline import gather, judge, response_of
from rksp.datasets.batch import Batch
from rksp.documents.options import MeasureOptions
from rksp.measure.response import measure_drift, measure_response
from rksp.models.adapters import as_trained
from rksp.models.given import module_source
from rksp.models.resolve import resolve
from rksp.recipe import Recipe

RECIPE = Recipe(optimizer="adamw", max_grad_norm=None)
BATCH = Batch(inputs={"input_ids": TOKENS[:, :-1]}, labels=TOKENS[:, 1:])
LORA = Recipe(peft="lora", lora_rank=2, lora_targets=("c_attn",), max_grad_norm=None)


def test_the_drift_grows_with_the_square_of_a_small_rate_and_leaves_the_model_as_it_was():
    model = tiny("gpt2").eval()
    before = copy.deepcopy(model.state_dict())
    none, small, larger = measure_drift(model, BATCH, RECIPE, BATCH, [0.0, 1e-4, 2e-4])
    assert none == pytest.approx(0.0, abs=1e-6)
    assert larger / small == pytest.approx(4.0, rel=0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_drift_is_the_divergence_of_the_moved_from_the_unmoved_predictions():
    model = tiny("gpt2").eval()
    (drift,) = measure_drift(
        model, BATCH, Recipe(optimizer="sgd", max_grad_norm=None), BATCH, [1.0]
    )
    moved = copy.deepcopy(model)
    logits = moved(BATCH.inputs["input_ids"]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), BATCH.labels.flatten()).backward()
    with torch.no_grad():
        for p in moved.parameters():
            p -= p.grad
        p, q = (m(BATCH.inputs["input_ids"]).logits.log_softmax(-1) for m in (model, moved))
    expected = (p.exp() * (p - q)).sum(-1).mean()
    assert drift == pytest.approx(float(expected), rel=1e-3)


def measured(recipe: Recipe):
    pytest.importorskip("peft")
    source = module_source(tiny("gpt2"), is_pretrained=True)
    evidence = gather(source, MeasureOptions(states=128, evidence="response"))
    weights = copy.deepcopy(evidence.built.model.state_dict())
    found = response_of(evidence, recipe, lambda *told: None)
    after = evidence.built.model.state_dict()
    assert weights.keys() == after.keys()  # no adapters are left on the model
    assert all(torch.equal(value, after[name]) for name, value in weights.items())
    return evidence, found


def test_the_response_is_that_of_the_adapters():
    evidence, found = measured(LORA)
    batch = evidence.built.probe.batch
    rows = max(1, batch.count // 8)
    halves = batch.rows(0, rows), batch.rows(rows, 2 * rows)
    by_hand = as_trained(copy.deepcopy(evidence.built.model), LORA, "causal-lm", seed=0)
    expected = measure_response(by_hand, *halves, LORA)
    assert found.grad_norm == expected.grad_norm and found.drift > 0
    _, whole = measured(RECIPE)
    assert whole.grad_norm != found.grad_norm and whole.drift > 0


def test_recipes_that_differ_in_their_adapters_do_not_share_a_response():
    assert first_step(LORA) != first_step(RECIPE) != first_step(Recipe(optimizer="sgd"))
    assert first_step(LORA) == first_step(LORA.model_copy(update={"learning_rate": 1e-3}))
    assert first_step(LORA) != first_step(LORA.model_copy(update={"lora_rank": 4}))


def test_adapters_that_cannot_be_built_are_a_reason_and_no_crash():
    _, found = measured(LORA.model_copy(update={"peft": "other"}))
    assert found.grad_norm is None and "cannot build the adapters" in found.reason


def test_of_a_streamed_model_no_adapters_are_built(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    evidence = gather(resolve(str(tmp_path)), MeasureOptions(states=128, streaming="always"))
    found = response_of(evidence, LORA, lambda *told: None)
    assert found.grad_norm is None and "model in memory" in found.reason
    assert response_of(evidence, RECIPE, lambda *told: None).grad_norm > 0
    for recipe, is_told in ((LORA, False), (RECIPE, True)):
        evaluation = judge(evidence, recipe)
        assert bool(evaluation.risk.measuring_adds) == (is_told and evaluation.risk.is_told)


def test_random_weights_have_no_drift():
    source = module_source(tiny("gpt2"), is_pretrained=False)
    evidence = gather(source, MeasureOptions(states=128, evidence="response"))
    assert response_of(evidence, RECIPE, lambda *told: None).drift is None
