"""The reaction to a first update, a column of the lab, against models whose answer is known."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from support.tiny_models import TOKENS, tiny
from torch import Tensor, nn

from lab.ladders.response import (
    ResponsePoint,
    ResponseProfile,
    first_direction,
    measure_drift,
    measure_response,
    of_response,
)
from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.datasets.batch import Batch
from rksp.measure.gradient import measure_gradient
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


def test_its_gradient_is_that_of_a_score_to_the_digit():
    first, second = _batches()
    model = build_member("zoo_pre_ln", SHAPE, seed=0)
    whole, alone = measure_response(model, first, second, Recipe()), measure_gradient(model, first)
    names = ("grad_norm", "grad_rms", "grad_max")
    assert [getattr(alone, n) for n in names] == [getattr(whole, n) for n in names]
    assert all(p.grad is None for p in model.parameters())


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


RECIPE = Recipe(optimizer="adamw", max_grad_norm=None)
BATCH = Batch(inputs={"input_ids": TOKENS[:, :-1]}, labels=TOKENS[:, 1:])


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


def _told(points: list[tuple[float, float]]) -> ResponseProfile:
    return ResponseProfile(
        loss=5.0,
        grad_norm=2.0,
        grad_rms=0.01,
        grad_max=0.5,
        update_rms=1.0,
        critical_rate=1e-2,
        output_slope=30.0,
        overshoot=1.5,
        points=tuple(ResponsePoint(rate=rate, fresh=fresh) for rate, fresh in points),
    )


POINTS = [(1e-4, -0.01), (1e-3, -0.05), (1e-2, 0.2), (1e-1, 3.0)]


def test_crossings_are_interpolated_between_points():
    values = of_response(_told(POINTS))
    # the fresh loss passes 0 a fifth of the way from 1e-3 to 1e-2
    assert -values["critical_rate"] == pytest.approx(-3 + 0.05 / 0.25)
    # and 0.25 just above 1e-2
    assert -values["rise_rate"] == pytest.approx(-2 + 0.05 / 2.8)


def test_a_loss_that_overflows_crosses_at_the_overflow():
    points = [*POINTS[:2], (1e-2, math.inf)]
    values = of_response(_told(points))
    assert -values["critical_rate"] == pytest.approx(-2.0)
