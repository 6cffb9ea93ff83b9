"""The first gradient: of pieces, of adapters, of a streamed model, and shared by recipes."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from support.tiny_models import tiny
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rksp.assessment.evidence import trained_part
from rksp.assessment.pipeline import gather, gradient_of
from rksp.datasets.batch import Batch, run_pass
from rksp.documents.options import MeasureOptions
from rksp.measure.gradient import measure_gradient
from rksp.models.adapters import as_trained
from rksp.models.given import module_source
from rksp.models.resolve import resolve
from rksp.recipe import Recipe

RECIPE = Recipe(optimizer="adamw", max_grad_norm=None)
TOKENS = torch.zeros(2, 3, dtype=torch.long)
LORA = Recipe(peft="lora", lora_rank=2, lora_targets=("c_attn",), max_grad_norm=None)


@dataclass
class _Output:
    logits: Tensor


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_gradient_that_comes_in_pieces_is_added_up(is_reentrant):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.layer = nn.Embedding(5, 4), nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> _Output:
            x = self.embed(inputs)
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=is_reentrant)
            return _Output(x)

    model, batch = Twice(), Batch(inputs=TOKENS, labels=torch.ones_like(TOKENS))
    run_pass(model, batch).total.backward()
    expected = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    model.zero_grad()
    assert measure_gradient(model, batch).grad_norm == pytest.approx(expected, rel=1e-6)


def measured(recipe: Recipe):
    pytest.importorskip("peft")
    source = module_source(tiny("gpt2"), is_pretrained=True)
    evidence = gather(source, MeasureOptions(states=128, evidence="gradient"))
    weights = copy.deepcopy(evidence.built.model.state_dict())
    found = gradient_of(evidence, recipe, lambda *told: None)
    after = evidence.built.model.state_dict()
    assert weights.keys() == after.keys()  # no adapters are left on the model
    assert all(torch.equal(value, after[name]) for name, value in weights.items())
    return evidence, found


def test_the_gradient_is_that_of_the_adapters():
    evidence, found = measured(LORA)
    batch = evidence.built.probe.batch
    by_hand = as_trained(copy.deepcopy(evidence.built.model), LORA, "causal-lm", seed=0)
    expected = measure_gradient(by_hand, batch.rows(0, max(1, batch.count // 8)))
    assert found.grad_norm == expected.grad_norm
    _, whole = measured(RECIPE)
    assert whole.grad_norm != found.grad_norm


def test_recipes_share_a_gradient_unless_their_adapters_differ():
    other = RECIPE.model_copy(update={"optimizer": "lion", "weight_decay": 0.5})
    assert trained_part(other) == trained_part(RECIPE) != trained_part(LORA)
    assert trained_part(LORA) == trained_part(LORA.model_copy(update={"learning_rate": 1e-3}))
    assert trained_part(LORA) != trained_part(LORA.model_copy(update={"lora_rank": 4}))


def test_adapters_that_cannot_be_built_are_a_reason_and_no_crash():
    _, found = measured(LORA.model_copy(update={"peft": "other"}))
    assert found.grad_norm is None and "cannot build the adapters" in found.reason


def test_of_a_streamed_model_no_adapters_are_built(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    evidence = gather(resolve(str(tmp_path)), MeasureOptions(states=128, streaming="always"))
    found = gradient_of(evidence, LORA, lambda *told: None)
    assert found.grad_norm is None and "model in memory" in found.reason
    assert gradient_of(evidence, RECIPE, lambda *told: None).grad_norm > 0
