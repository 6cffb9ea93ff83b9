"""The loss over a large vocabulary is torch's, value and gradient, in less memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from rksp.datasets.batch import IGNORED, Batch, run_pass
from rksp.kernels import cross_entropy


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(cross_entropy, "AT_ONCE", 100)


class _Model(torch.nn.Module):
    """Returns its one parameter as logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, inputs):
        return type("Output", (), {"logits": self.logits})


def _both(logits, labels, scale=1.0, kind=torch.float64):
    """Return our loss and gradient, and torch's own in double precision."""
    model = _Model(logits.clone())
    ours = run_pass(model, Batch(inputs=torch.zeros(1), labels=labels)).loss
    (ours * scale).backward()
    exact = logits.double().requires_grad_()
    whole = F.cross_entropy(exact.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
    (whole * scale).backward()
    assert type(ours.grad_fn).__name__.startswith("_Chunked")
    assert model.logits.grad.dtype == logits.dtype
    return ours, model.logits.grad, whole, exact.grad


def _case(kind=torch.float64, spread=3.0):
    generator = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(3, 17, 29, generator=generator)).to(kind)
    labels = torch.randint(0, 29, (3, 17), generator=generator)
    labels[0, ::3] = IGNORED
    return logits, labels


@pytest.mark.parametrize("scale", [1.0, 0.25, 65536.0])
def test_in_double_precision_loss_and_gradient_are_torchs(scale):
    ours, gradient, whole, exact = _both(*_case(), scale)
    torch.testing.assert_close(ours, whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradient, exact, rtol=1e-12, atol=1e-16 * scale)


@pytest.mark.parametrize(
    ("kind", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)]
)
def test_in_lower_precision_a_scaled_gradient_keeps_its_digits(kind, rtol):
    ours, gradient, whole, exact = _both(*_case(kind), scale=4096.0)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), whole, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), exact, rtol=rtol, atol=1e-4)


def test_far_logits_lose_nothing():
    logits, labels = _case(torch.float32, spread=300.0)
    ours, gradient, whole, _ = _both(logits, labels)
    assert math.isfinite(float(ours.detach())) and bool(gradient.isfinite().all())
    torch.testing.assert_close(ours.double(), whole, rtol=1e-5, atol=0)


def test_what_is_not_finite_stays_so():
    for bad in (math.nan, math.inf):
        logits, labels = _case()
        logits[1, 2, 3] = bad
        assert not math.isfinite(float(_both(logits, labels)[0].detach()))
    logits, labels = _case()
    assert math.isnan(float(_both(logits, torch.full_like(labels, IGNORED))[0].detach()))


def test_few_logits_and_no_gradient_are_torchs_own_to_the_last_bit(monkeypatch):
    logits, labels = _case(torch.float32)
    whole = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
    given = Batch(inputs=torch.zeros(1), labels=labels)
    with torch.no_grad():
        assert torch.equal(run_pass(_Model(logits), given).loss, whole)
    monkeypatch.setattr(cross_entropy, "AT_ONCE", logits.numel())
    assert torch.equal(run_pass(_Model(logits), given).loss.detach(), whole)
