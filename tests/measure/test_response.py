"""The response probe against models whose answer is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.batch import Batch
from rksp.measure.response import measure_response
from rksp.optimizers import OPTIMIZERS
from rksp.recipe import Recipe

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
    assert response.descent == pytest.approx(1.5, rel=1e-3)


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
