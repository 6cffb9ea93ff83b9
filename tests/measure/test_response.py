"""The response probe against models whose answer is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch, run_pass
from rksp.measure.response import first_direction, measure_gradient, measure_response
from rksp.models.streaming import gradients as of_weights
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import OPTIMIZERS, make_optimizer

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 16,
}


@dataclass
class _Output:
    logits: Tensor


class _Logits(nn.Module):
    """A model that is its own logits, so that every quantity has a formula."""

    def __init__(self, start: list[float]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(start))

    def forward(self, inputs: Tensor) -> _Output:
        return _Output(self.bias.expand(*inputs.shape, -1))


def _batches() -> tuple[Batch, Batch]:
    task = make_task("bytes", length=16)
    first, second = task.batches(2, 4, seed=3)
    return first, second


def _constant_batch(label: int) -> Batch:
    tokens = torch.zeros(2, 3, dtype=torch.long)
    return Batch(inputs=tokens, labels=torch.full_like(tokens, label))


def test_gradient_and_descent_follow_the_formula():
    """Softmax over equal logits: g = p − onehot, and Adam's first step is −sign(g) per rate."""
    response = measure_response(
        _Logits([0.0, 0.0, 0.0, 0.0]),
        _constant_batch(1),
        _constant_batch(1),
        Recipe(max_grad_norm=None),
    )
    gradient = torch.tensor([0.25, -0.75, 0.25, 0.25])
    assert response.loss == pytest.approx(math.log(4), rel=1e-6)
    assert response.grad_norm == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert response.grad_max == pytest.approx(0.75, rel=1e-5)
    assert response.update_rms == pytest.approx(1.0, rel=1e-3)


def test_critical_rate_is_where_the_fresh_loss_returns():
    """Moving towards label 1 while the fresh batch also asks for label 2 half of the time.

    The fresh loss along logits (−r, r, −r) is ½(f₁ + f₂) and returns to ln 3 at one r > 0, which
    bisection in float64 finds independently.
    """

    def fresh_loss(r: float) -> float:
        logits = torch.tensor([-r, r, -r], dtype=torch.float64)
        # three labels of 1 for every one of 2: the step helps at first, then hurts
        return float(logits.logsumexp(0) - 0.75 * logits[1] - 0.25 * logits[2])

    low, high = 0.1, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fresh_loss(middle) < math.log(3) else (low, middle)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    fresh = Batch(inputs=tokens, labels=torch.tensor([[1, 1, 1, 2]]))
    same = Batch(inputs=tokens, labels=torch.ones_like(tokens))
    response = measure_response(_Logits([0.0] * 3), same, fresh, Recipe(max_grad_norm=None))
    assert abs(math.log10(response.critical_rate / low)) < 0.06


def test_a_step_that_only_helps_has_no_critical_rate():
    one = _constant_batch(1)
    response = measure_response(_Logits([0.0] * 3), one, one, Recipe(max_grad_norm=None))
    assert response.critical_rate is None
    assert response.overshoot is None
    assert response.points[-1].fresh < 0


def test_zero_gradient_is_a_reason_not_a_number():
    blind = _Logits([0.0] * 3)
    blind.forward = lambda inputs: _Output(0 * blind.bias.expand(*inputs.shape, -1))
    response = measure_response(blind, _constant_batch(1), _constant_batch(1), Recipe())
    assert response.reason == "the gradient is zero"
    assert response.critical_rate is None
    assert response.grad_norm is None


@pytest.mark.parametrize("optimizer", [spec.name for spec in OPTIMIZERS if spec.make])
def test_the_model_is_left_bitwise_as_found(optimizer):
    model = build_member("zoo_pre_ln", SHAPE, seed=0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    same, fresh = _batches()
    measure_response(model, same, fresh, Recipe(optimizer=optimizer))
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_failure_inside_restores_the_model_too():
    model = build_member("zoo_pre_ln", SHAPE, seed=0)
    before = [p.detach().clone() for p in model.parameters()]
    same, fresh = _batches()
    broken = Batch(inputs=fresh.inputs + 10_000, labels=fresh.labels)
    with pytest.raises(IndexError):
        measure_response(model, same, broken, Recipe())
    assert all(torch.equal(p, p0) for p, p0 in zip(model.parameters(), before, strict=True))


def test_the_learning_rate_of_the_recipe_does_not_matter():
    same, fresh = _batches()
    profiles = [
        measure_response(
            build_member("zoo_pre_ln", SHAPE, seed=0), same, fresh, Recipe(learning_rate=rate)
        )
        for rate in (1e-5, 1.0)
    ]
    assert profiles[0] == profiles[1]


def test_cost_is_counted():
    same, fresh = _batches()
    response = measure_response(build_member("zoo_pre_ln", SHAPE, seed=0), same, fresh, Recipe())
    # A gradient on half of the data (1.5), that half once more, and the other unmoved and a point.
    assert response.forward_passes == 2.5 + len(response.points) / 2
    assert len(response.points) <= 9


def test_the_first_gradient_alone_is_that_of_the_response_to_the_digit():
    first, second = _batches()
    model = build_member("zoo_pre_ln", SHAPE, seed=0)
    whole = measure_response(model, first, second, Recipe())
    alone = measure_gradient(model, first, 0.5)
    names = ("grad_norm", "grad_rms", "grad_max")
    assert [getattr(alone, n) for n in names] == [getattr(whole, n) for n in names]
    assert whole.has_step and not alone.has_step and alone.critical_rate is None
    assert alone.forward_passes == 1.5
    assert all(p.grad is None for p in model.parameters())


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

    model, batch = Twice(), _constant_batch(1)
    run_pass(model, batch).total.backward()
    expected = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    model.zero_grad()
    assert measure_gradient(model, batch).grad_norm == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("optimizer", [spec.name for spec in OPTIMIZERS if spec.make is not None])
def test_the_direction_is_the_optimizers_own_first_update(optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9))
    recipe = Recipe(optimizer=optimizer, weight_decay=0.1, max_grad_norm=0.3)
    params = list(model.parameters())
    gradients = [torch.randn_like(p) for p in params]
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    for p, gradient in zip(params, gradients, strict=True):
        p.grad = gradient.clone()
    direction = first_direction(model, recipe, norm, params)
    before = [p.detach().clone() for p in params]
    for p, gradient in zip(params, gradients, strict=True):
        p.grad = gradient
    nn.utils.clip_grad_norm_(params, 0.3)
    make_optimizer(model, recipe.model_copy(update={"learning_rate": 1e-3})).step()
    for p, old, found in zip(params, before, direction, strict=True):
        torch.testing.assert_close(found, (p.detach() - old) / 1e-3, rtol=1e-3, atol=1e-3)


def test_the_direction_in_memory_leaves_the_weights_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 5))
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    direction = first_direction(model, Recipe(), 1.0, list(model.parameters()))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert all(u.abs().median() == pytest.approx(1.0, rel=1e-2) for u in direction)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "sgd", "muon"])
def test_the_direction_in_memory_is_the_same_in_parts_of_rows(optimizer, monkeypatch):
    found = []
    for entries in (1 << 20, 40):
        monkeypatch.setattr(of_weights, "_CHUNK", entries)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 5))
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        recipe = Recipe(optimizer=optimizer, weight_decay=0.1)
        found.append(first_direction(model, recipe, 2.0, list(model.parameters())))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
