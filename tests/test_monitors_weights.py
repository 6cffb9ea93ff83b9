"""Monitors of weights against explicit matrices and their singular values in float64."""

from __future__ import annotations

import torch
from tiny_models import tiny

from rksp.monitors.anatomy import find_anatomy
from rksp.monitors.base import Moment
from rksp.monitors.qk_entropy import QKSpectralEntropy, change_ranks
from rksp.monitors.stable_rank import StableRank


def _rank(matrix):
    energy = torch.linalg.svdvals(matrix).square()
    p = energy / energy.sum()
    return torch.special.entr(p).sum().exp()


def _draws(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_terms_of_the_change_are_those_of_dense_matrices():
    q, k, dq, dk = (_draws(3, 4, 20, seed=i) for i in range(4))
    dq, dk = 1e-2 * dq, 1e-2 * dk
    found = change_ranks(q, k, q + dq, k + dk)
    for head in range(3):
        wq, wk, sq, sk = (x[head].T for x in (q, k, dq, dk))
        delta2, delta3 = sq @ wk.T + wq @ sk.T, sq @ sk.T
        delta1 = (wq + sq) @ (wk + sk).T - wq @ wk.T
        assert (delta1 - delta2 - delta3).abs().max() < 1e-12
        dense = {"qk_delta1_rank": delta1, "qk_delta2_rank": delta2, "qk_delta3_rank": delta3}
        for name, matrix in dense.items():
            torch.testing.assert_close(found[name][0][head], _rank(matrix), rtol=1e-9, atol=0)


def test_the_change_is_free_of_gauge():
    q, k, dq, dk = (_draws(2, 4, 20, seed=i) for i in range(4))
    turn = _draws(4, 4, seed=9) + 3 * torch.eye(4, dtype=torch.float64)
    other = torch.linalg.inv(turn).T
    plain = change_ranks(q, k, q + dq, k + dk)
    turned = change_ranks(turn @ q, other @ k, turn @ (q + dq), other @ (k + dk))
    for name in ("qk_delta1_rank", "qk_delta2_rank", "qk_delta3_rank"):
        torch.testing.assert_close(plain[name][0], turned[name][0], rtol=1e-8, atol=0)
    assert not torch.allclose(plain["query_update_rank"][0], turned["query_update_rank"][0])


def test_one_direction_gives_rank_one_and_noise_does_not():
    model = tiny("llama")
    layer = find_anatomy(model).attention[0]
    monitor = QKSpectralEntropy(every=1, windows=(1,))
    assert monitor.bind(model) is None
    assert monitor.read(Moment(step=0, model=model)) == []
    with torch.no_grad():
        for matrix in (layer.query, layer.key):
            line = torch.outer(torch.ones(matrix.shape[0]), torch.ones(32))
            matrix.parameter.add_(1e-2 * line)
    readings = monitor.read(Moment(step=1, model=model))
    planted = {r.quantity: r.value for r in readings if r.layer == layer.path}
    assert planted["query_update_rank_1"] < 1.01 and planted["qk_delta2_rank_1"] < 2.01
    assert {r.layer for r in readings} == {layer.path}  # the other layer did not move
    with torch.no_grad():
        for matrix in (layer.query, layer.key):
            noise = torch.randn(matrix.parameter.shape, generator=torch.Generator().manual_seed(1))
            matrix.parameter.add_(1e-2 * noise)
    healthy = {r.quantity: r.value for r in monitor.read(Moment(step=2, model=model))}
    assert healthy["qk_delta2_rank_1"] > 8


def test_stable_rank_is_that_of_the_singular_values():
    model = tiny("gpt_neox")
    monitor = StableRank()
    assert monitor.bind(model) is None
    readings = {r.layer: r.value for r in monitor.read(Moment(step=0, model=model))}
    for matrix in find_anatomy(model).attention_matrices():
        values = torch.linalg.svdvals(matrix.read().double())
        expected = float(values.square().sum() / values[0] ** 2)
        assert abs(readings[matrix.name] / expected - 1) < 1e-2
    matrix = find_anatomy(model).attention[0].query
    matrix.write(torch.ones(matrix.shape))
    readings = {r.layer: r.value for r in monitor.read(Moment(step=100, model=model))}
    assert abs(readings[matrix.name] - 1) < 1e-3
