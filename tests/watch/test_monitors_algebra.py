"""Cosines of rows, router entropy and expert load against float64 and known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.kernel_cases import FLOATS, states

from rksp.watch.monitors.routers import expert_load, router_entropy
from rksp.watch.monitors.weights import alignment

DTYPES = (*FLOATS, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(70, 33), (9, 5)], ids=str)
def test_alignment_against_numpy(dtype, shape):
    x = states(*shape, seed=1).to(dtype)
    v = torch.nn.functional.normalize(states(3, shape[-1], seed=2), dim=-1)
    rows, units = x.double().numpy(), v.double().numpy()
    cosines = rows @ units.T / np.linalg.norm(rows, axis=1)[:, None]
    positive, negative, known, *rest = alignment(x, v)
    assert positive.tolist() == (cosines > 0).sum(0).tolist()
    assert negative.tolist() == (cosines < 0).sum(0).tolist()
    assert known.tolist() == [shape[0]] * 3
    ends = np.quantile(cosines, [0.05, 0.95], axis=0)
    truth = np.stack([cosines.mean(0), cosines.std(0), *ends])
    np.testing.assert_allclose(torch.stack(rest), truth, atol=1e-5)


def test_alignment_of_known_directions():
    x = torch.tensor([[2.0, 0.0], [-3.0, 0.0], [0.0, 5.0], [1.0, 1.0]])
    found = alignment(x, torch.tensor([[1.0, 0.0]]))[:, 0].tolist()
    assert found[:3] == [2, 1, 4]
    assert found[3] == pytest.approx(math.sqrt(0.5) / 4)


def test_rows_without_a_direction_are_not_counted():
    x = torch.ones(6, 4)
    x[1] = 0
    x[2, 3] = float("nan")
    x[3, 0] = float("inf")
    x[4] = 1e-20
    found = alignment(x, torch.full((1, 4), 0.5))[:, 0].tolist()
    assert found == pytest.approx([2, 0, 2, 1, 0, 1, 1])
    assert alignment(x[1:2], torch.full((1, 4), 0.5))[2].tolist() == [0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_sigmoid", [False, True], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("shape", [(70, 8), (21, 5), (1, 1)], ids=str)
def test_router_entropy_against_numpy(dtype, is_sigmoid, shape):
    logits = (4 * states(*shape, seed=3)).to(dtype)
    entropy = router_entropy(logits, is_sigmoid=is_sigmoid)
    z = logits.double().numpy()
    weight = 1 / (1 + np.exp(-z)) if is_sigmoid else np.exp(z)
    p = weight / weight.sum(-1, keepdims=True)
    np.testing.assert_allclose(entropy, -(p * np.log(p)).sum(-1), atol=1e-5)
    assert entropy.shape == shape[:-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "top_k"), [((70, 8), 2), ((21, 5), 5), ((1, 1), 1)], ids=str)
def test_expert_load_against_numpy(dtype, shape, top_k):
    logits = (4 * states(*shape, seed=3)).to(dtype)
    z = logits.double().numpy()
    chosen = np.argsort(-z, axis=-1, kind="stable")[:, :top_k]
    counted = np.bincount(chosen.ravel(), minlength=shape[-1]).tolist()
    assert expert_load(logits, top_k).tolist() == counted


def test_router_entropy_has_its_known_bounds():
    uniform = torch.zeros(3, 64)
    torch.testing.assert_close(router_entropy(uniform), torch.full((3,), math.log(64)))
    load = expert_load(uniform, 2)
    assert load[:2].tolist() == [3, 3] and load[2:].sum() == 0
    certain = torch.full((1, 8), -1e4)
    certain[0, 5] = 1e4
    assert router_entropy(certain).item() == 0
    # Masked experts are as if they were not there.
    masked = torch.full((1, 8), -math.inf)
    masked[0, :4] = 0
    for is_sigmoid in (False, True):
        entropy = router_entropy(masked, is_sigmoid=is_sigmoid)
        assert entropy.item() == pytest.approx(math.log(4))
    assert expert_load(masked, 6).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("is_sigmoid", [False, True], ids=["softmax", "sigmoid"])
def test_a_token_that_cannot_be_read_is_nan_and_counts_nowhere(is_sigmoid):
    logits = states(5, 4, seed=4)
    logits[2, 1] = math.nan
    logits[3] = -math.inf
    logits[4, 0] = math.inf
    is_nan = router_entropy(logits, is_sigmoid=is_sigmoid).isnan().tolist()
    assert is_nan == [False, False, True, True, True]
    assert torch.equal(expert_load(logits), expert_load(logits[:2]))


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e30])
def test_entropy_does_not_depend_on_a_common_offset(offset):
    logits = torch.zeros(3, 8)
    logits[1, :4] = -math.inf
    entropy = router_entropy(logits + offset).tolist()
    assert entropy == pytest.approx([math.log(8), math.log(4), math.log(8)], rel=1e-6)
