"""Attention of low precision: its backward pass loses what the paper says, and nothing else."""

from __future__ import annotations

import pytest
import torch
from support.fault_runs import faulty_run
from support.small_zoo import small_member
from torch import nn
from torch.nn import functional as F

from rksp.ground.errors import NotCovered
from rksp.watch.faults.computation import LowPrecisionAttention
from rksp.watch.moment import Moment


def _attention_case(groups: int, masked: bool):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    q, k, v = draw(2, 4, 9, 8), draw(2, 4 // groups, 9, 8), draw(2, 4 // groups, 9, 8) + 1.0
    mask = None
    if masked:
        mask = torch.ones(9, 9, dtype=torch.bool).tril()
        mask[:, 2] = False
        mask[:3, 0] = True
    options = {"attn_mask": mask, "is_causal": not masked, "enable_gqa": groups > 1, "scale": 0.3}
    return [t.requires_grad_() for t in (q, k, v)], options, draw(2, 4, 9, 8) + 0.5


def _spoiled(fault, inputs, options, grad):
    exchange = fault.arm(Moment(step=0, model=nn.Module()))
    output = F.scaled_dot_product_attention(*inputs, **options)
    gradients = torch.autograd.grad(output, inputs, grad)
    for handle in exchange:
        handle.remove()
    return output, gradients


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_backward_with_all_bits_is_that_of_attention_up_to_bfloat16_of_delta(groups, masked):
    inputs, options, grad = _attention_case(groups, masked)
    exact = F.scaled_dot_product_attention(*inputs, **options)
    expected = torch.autograd.grad(exact, inputs, grad)
    fault = LowPrecisionAttention(bits=0)
    fault.spoil = lambda tensor: tensor  # full precision: the formulas alone
    output, gradients = _spoiled(fault, inputs, options, grad)
    assert torch.equal(output, exact)
    for found, true in zip(gradients, expected, strict=True):
        assert torch.allclose(found, true, atol=1e-12)


def test_truncation_breaks_the_null_sum_of_the_key_gradient_and_dv_stays():
    inputs, options, grad = _attention_case(1, False)
    exact = F.scaled_dot_product_attention(*inputs, **options)
    expected = torch.autograd.grad(exact, inputs, grad)
    leaks = {}
    for kind, bits in (("truncate", 2), ("truncate", 7), ("round", 2), ("bf16", 0)):
        fault = LowPrecisionAttention(bits=bits, kind=kind)
        output, (_, dk, dv) = _spoiled(fault, inputs, options, grad)
        assert torch.equal(output, exact)
        assert torch.allclose(dv, expected[2], atol=1e-12)
        leaks[kind, bits] = float(dk.sum(-2).norm() / dk.norm())
    assert float(expected[1].sum(-2).norm()) < 1e-12
    assert leaks["truncate", 7] > 5 * leaks["truncate", 2] > 5 * leaks["bf16", 0] > 0
    assert leaks["truncate", 2] > leaks["round", 2]


def test_spoiling_shrinks_by_the_published_factors():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    for bits, factor in ((2, 0.992), (4, 0.959), (7, 0.723), (8, 0.533)):
        ratio = LowPrecisionAttention(bits=bits).spoil(x) / x
        assert float(ratio.mean()) == pytest.approx(factor, abs=4e-3)
    rounded = LowPrecisionAttention(bits=4, kind="round").spoil(x) / x
    assert float(rounded.mean()) == pytest.approx(1.0, abs=5e-3)


@pytest.mark.parametrize("family", ["zoo_pre_ln", "llama"])
def test_attention_fault_reaches_zoo_and_transformers_and_spares_the_forward_pass(family):
    fault = LowPrecisionAttention()
    struck, clean = faulty_run(fault, family=family, steps=2), faulty_run(family=family, steps=2)
    assert struck[0][0] == clean[0][0]
    assert struck[0][1] != clean[0][1]


def test_attention_fault_explains_where_it_cannot_strike():
    model = small_member("llama")
    model.config._attn_implementation = "eager"
    with pytest.raises(NotCovered, match="sdpa"):
        LowPrecisionAttention().bind(model, seed=0)
    fault = LowPrecisionAttention()
    linear = nn.Linear(2, 2)
    fault.bind(linear, seed=0)
    moment = Moment(step=0, model=linear)
    (handle,) = fault.arm(moment)
    linear(torch.ones(1, 2))
    handle.remove()
    with pytest.raises(NotCovered, match="never calls"):
        fault.after_backward(moment)
    inputs, _, _ = _attention_case(1, False)
    (handle,) = fault.arm(moment)
    with pytest.raises(NotCovered, match="dropout"):
        F.scaled_dot_product_attention(*inputs, dropout_p=0.1)
    handle.remove()
