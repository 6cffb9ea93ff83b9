"""Monitors of weights against explicit matrices and their singular values in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.tiny_models import TOKENS, tiny
from support.watching import alarms_of, noise, observe, values_of

from rksp.kernels.newton_schulz import polar_factor
from rksp.models.anatomy.parts import find_anatomy
from rksp.watch.moment import Moment
from rksp.watch.monitors.watch import Watch
from rksp.watch.monitors.weights import (
    QKSpectralEntropy,
    SpectralAlignment,
    StableRank,
    change_ranks,
)


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
        dense = {"qk_delta2_rank": delta2, "qk_delta3_rank": delta3}
        for name, matrix in dense.items():
            torch.testing.assert_close(found[name][0][head], _rank(matrix), rtol=1e-9, atol=0)


def test_the_change_is_free_of_gauge():
    q, k, dq, dk = (_draws(2, 4, 20, seed=i) for i in range(4))
    turn = _draws(4, 4, seed=9) + 3 * torch.eye(4, dtype=torch.float64)
    other = torch.linalg.inv(turn).T
    plain = change_ranks(q, k, q + dq, k + dk)
    turned = change_ranks(turn @ q, other @ k, turn @ (q + dq), other @ (k + dk))
    for name in ("qk_delta2_rank", "qk_delta3_rank"):
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


@pytest.mark.parametrize("width", [64, 256, 768])
def test_an_update_of_one_direction_has_rank_two_in_float32(width):
    line = _draws(width, seed=2)
    line /= line.norm()
    q = 0.02 * _draws(4, 64, width, seed=0)
    # Both updates push one direction e that no row has: Δ2 = e uᵀ + u eᵀ with u orthogonal to e.
    q = (q - (q @ line).unsqueeze(-1) * line).float()
    step = (1e-3 * _draws(4, 64, 1, seed=1) * line).float()
    found = change_ranks(q, q, q + step, q + step)
    assert found["qk_delta2_rank"][0].tolist() == pytest.approx([2.0] * 4, abs=1e-6)
    assert found["qk_delta3_rank"][0].tolist() == pytest.approx([1.0] * 4, abs=1e-6)


def test_heads_that_collapse_are_kept_and_those_that_did_not_move_are_counted():
    q, k = (0.02 * _draws(3, 64, 64, seed=i).float() for i in range(2))  # 2 · 64 > 64
    step = 1e-3 * _draws(3, 64, 64, seed=2).float()
    step[1] = 1e-3 * torch.outer(step[1, 0], step[1, 1]) / step[1, 1].norm()
    step[2] = 0.0
    monitor = QKSpectralEntropy()
    ranks, size = change_ranks(q, k, q + step, k + step)["qk_delta2_rank"]
    layer = find_anatomy(tiny("llama")).attention[0]
    reading = monitor._of_heads("qk_delta2_rank_50", 50, layer, ranks, size)
    assert ranks[0] > 20 > 3 > ranks[1] > 1 and ranks[2] == 0
    assert reading.value == float(ranks[1]) and reading.detail["head"] == 1
    assert (reading.detail["heads"], reading.detail["unmoved"]) == (2, 1)


def test_a_head_that_is_not_finite_is_no_head_that_did_not_move():
    q = _draws(2, 4, 20, seed=0)
    step = torch.zeros_like(q)
    step[0, 0, 0] = torch.inf
    ranks, size = change_ranks(q, q, q + step, q)["qk_delta2_rank"]
    assert ranks[0].isnan() and ranks[1] == 0
    layer = find_anatomy(tiny("llama")).attention[0]
    assert math.isnan(QKSpectralEntropy()._of_heads("q", 1, layer, ranks, size).value)


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


def _dense_factors(layer):
    """`W_q` and `W_k` of every query head, `[width, head_dim]` each, written out."""
    queries, keys = layer.query_factor(), layer.key_factor()
    group = layer.heads // layer.kv_heads
    return [(queries[h].T.clone(), keys[h // group].T.clone()) for h in range(layer.heads)]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "phi3", "deepseek_v3"])
def test_the_worst_head_of_every_layout_is_that_of_dense_matrices(name):
    model = tiny(name, dtype=torch.float64)
    layers = find_anatomy(model).attention
    monitor = QKSpectralEntropy(every=1, windows=(2,))
    monitor.bind(model)
    assert monitor.read(Moment(step=0, model=model)) == []
    then = [_dense_factors(layer) for layer in layers]
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-2 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    assert monitor.read(Moment(step=1, model=model)) == []
    readings = monitor.read(Moment(step=2, model=model))
    for layer, before in zip(layers, then, strict=True):
        ranks = {"qk_delta2_rank_2": [], "qk_delta3_rank_2": [], "query_update_rank_2": []}
        for (wq, wk), (nq, nk) in zip(before, _dense_factors(layer), strict=True):
            ranks["qk_delta2_rank_2"].append(_rank((nq - wq) @ wk.T + wq @ (nk - wk).T))
            ranks["qk_delta3_rank_2"].append(_rank((nq - wq) @ (nk - wk).T))
            ranks["query_update_rank_2"].append(_rank(nq - wq))
        for quantity, expected in ranks.items():
            (found,) = [r for r in readings if r.layer == layer.path and r.quantity == quantity]
            assert found.value == pytest.approx(float(min(expected)), rel=1e-9)
            assert found.detail["median"] == pytest.approx(float(torch.stack(expected).median()))


def test_a_base_is_kept_for_its_window_and_forgotten_at_a_reset():
    model = tiny("llama")
    monitor = QKSpectralEntropy(every=5)
    assert monitor.windows == (5, 50)
    monitor.bind(model)
    windows = []
    for step in range(0, 105, 5):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(1e-3 * _draws(*p.shape, seed=step).float())
        if step == 75:
            monitor.reset()
        found = {r.quantity for r in monitor.read(Moment(step=step, model=model))}
        windows.append((step, "qk_delta2_rank_5" in found, "qk_delta2_rank_50" in found))
    assert [step for step, short, _ in windows if not short] == [0, 75]
    assert [step for step, _, long in windows if long] == [50]  # the next would be at 125


def test_planted_directions_give_the_ranks_of_a_computation_apart():
    # Width 768, head width 64, share f of a rank-one part, computed apart from rksp. At f = 0.8
    # that gave 1.4 for the second order, which depends on the angle of the two parts in the head.
    expected = {0.0: (108.7, 58.8, 61.4), 0.3: (57.5, 21.4, 31.4), 0.8: (7.2, 2.4, 3.7)}
    dim, width = 64, 768
    for share, (second, third, update) in expected.items():
        steps = []
        for seed in (1, 2):
            line = torch.outer(_draws(dim, seed=10 + seed), _draws(width, seed=20 + seed))
            rest = _draws(dim, width, seed=30 + seed)
            parts = ((share**0.5, line), ((1 - share) ** 0.5, rest))
            steps.append(1e-2 * sum(weight * part / part.norm() for weight, part in parts))
        q, k = (_draws(1, dim, width, seed=seed) for seed in (5, 6))
        found = change_ranks(q, k, q + steps[0], k + steps[1])
        assert float(found["qk_delta2_rank"][0]) == pytest.approx(second, rel=0.08)
        assert float(found["qk_delta3_rank"][0]) == pytest.approx(third, rel=0.15)
        assert float(found["query_update_rank"][0]) == pytest.approx(update, rel=0.08)


def test_a_matrix_that_loses_its_rank_fires_and_one_that_trains_does_not():
    healthy = {f"layer.{i}": list(9 * np.exp(0.02 * noise(60, seed=i))) for i in range(4)}
    for quantity in ("stable_rank", "qk_delta2_rank_50", "qk_delta3_rank_500"):
        assert alarms_of(quantity, healthy) == []
    sick = healthy | {"layer.2": [*healthy["layer.2"][:40], *(9 * 0.8**k for k in range(20))]}
    first = alarms_of("stable_rank", sick)[0]
    assert (first.layer, first.advice) == ("layer.2", "msign") and 40 < first.step < 50
    sick = healthy | {"layer.2": healthy["layer.2"][:40] + [1.5] * 20}
    assert 40 <= alarms_of("qk_delta2_rank_50", sick)[0].step < 43


def test_stable_rank_of_every_matrix_of_the_blocks_experts_together():
    model = tiny("mixtral")
    anatomy = find_anatomy(model)
    readings = observe(model, StableRank(), TOKENS)
    expected = {}
    for matrix in anatomy.attention_matrices() + anatomy.feed_forward:
        values = torch.linalg.svdvals(matrix.read().double())
        layer = matrix.name.replace(f":{matrix.expert}", "")
        rank = float(values.square().sum() / values[0] ** 2)
        expected[layer] = min(rank, expected.get(layer, rank))
    assert values_of(readings, "stable_rank") == pytest.approx(expected, rel=1e-2)
    early = [expected[m.name] for m in anatomy.attention[0].matrices()]
    found = values_of(readings, "early_stable_rank")
    assert found[""] == pytest.approx(math.prod(early) ** (1 / len(early)), rel=1e-2)


def test_the_polar_factor_errs_as_a_computation_apart_did():
    # Polar Express in float64, computed apart: (condition, steps) → (error, least output).
    table = {
        (1e2, 5): (0.087, 0.87), (1e2, 6): (1.0e-3, 1.0), (1e3, 6): (0.16, 0.40),
        (1e3, 8): (9.2e-3, 0.93), (1e4, 8): (0.27, 0.17), (1e4, 10): (0.091, 0.54),
    }  # fmt: skip
    for (condition, steps), (error, least) in table.items():
        values = torch.logspace(0, -math.log10(condition), 256, dtype=torch.float64)
        found = polar_factor(torch.diag(values), steps).diagonal()
        assert float((found - 1).norm()) / 16 == pytest.approx(error, rel=0.05)
        assert float(found.min()) == pytest.approx(least, abs=0.01)


def test_stable_rank_follows_weights_that_move():
    model = tiny("llama")
    monitor = StableRank()
    monitor.bind(model)
    for step in range(4):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(3e-2 * _draws(*p.shape, seed=step).float())
        readings = values_of(monitor.read(Moment(step=step, model=model)), "stable_rank")
    for matrix in find_anatomy(model).feed_forward:
        values = torch.linalg.svdvals(matrix.read().double())
        assert readings[matrix.name] == pytest.approx(
            float(values.square().sum() / values[0] ** 2), rel=2e-2
        )


def _inputs_of(model, path):
    seen = []
    handle = model.get_submodule(path).register_forward_pre_hook(
        lambda module, args: seen.append(args[0].detach())
    )
    with torch.no_grad():
        model(TOKENS)
    handle.remove()
    return seen[0][:, 1:].flatten(0, 1)  # without the first position


@pytest.mark.parametrize("name", ["gpt2", "llama", "phi3"])
def test_the_majority_of_signs_is_that_of_explicit_cosines(name):
    model = tiny(name, dtype=torch.float64)
    anatomy = find_anatomy(model)
    matrices = anatomy.attention_matrices() + anatomy.feed_forward
    for matrix in matrices:  # a gap, or 24 passes do not find the direction
        left, values, right = torch.linalg.svd(matrix.read(), full_matrices=False)
        matrix.write(matrix.read() + values[0] * torch.outer(left[:, 0], right[0]))
    readings = {r.layer: r for r in observe(model, SpectralAlignment(), TOKENS)}
    for matrix in matrices:
        x = _inputs_of(model, matrix.name.partition(":")[0])
        values, right = torch.linalg.svd(matrix.read())[1:]
        cosines = torch.cosine_similarity(x, right[0], dim=-1)
        positive = int((cosines > 0).sum())
        reading = readings.pop(matrix.name)
        assert reading.value == pytest.approx(max(positive, len(x) - positive) / len(x))
        assert abs(reading.detail["mean"]) == pytest.approx(abs(float(cosines.mean())), abs=1e-4)
        assert reading.detail["std"] == pytest.approx(float(cosines.std(correction=0)), abs=1e-4)
        assert reading.detail["gap"] == pytest.approx(float(values[1] / values[0]), abs=1e-3)
        assert reading.detail["p5"] <= reading.detail["mean"] <= reading.detail["p95"]
    assert readings == {}


def test_a_direction_that_appears_between_readings_is_found_or_its_residual_told():
    model = tiny("llama", dtype=torch.float64)
    matrix = find_anatomy(model).attention[0].query
    monitor = SpectralAlignment()
    watch = Watch([monitor])
    watch.bind(model)
    observe(model, monitor, TOKENS, watch=watch)
    left, values, right = torch.linalg.svd(matrix.read(), full_matrices=False)
    new = torch.outer(left[:, -1], right[-1])
    matrix.write(matrix.read() + 2.5 * values[0] * new)
    first = torch.linalg.svd(matrix.read())[2][0]
    later = {r.layer: r for r in observe(model, monitor, TOKENS, step=40, watch=watch)}
    reading = later[matrix.name]
    cosines = torch.cosine_similarity(_inputs_of(model, matrix.name), first, dim=-1)
    assert reading.detail["residual"] < 0.01
    assert abs(reading.detail["mean"]) == pytest.approx(abs(float(cosines.mean())), abs=0.012)


def test_the_majority_does_not_depend_on_the_sign_of_the_direction():
    found = []
    for sign in (1.0, -1.0):
        model = tiny("llama")
        monitor = SpectralAlignment()
        watch = Watch([monitor])
        watch.bind(model)
        observe(model, monitor, TOKENS, watch=watch)
        monitor.past["vectors"] = tuple(sign * basis for basis in monitor.past["vectors"])
        found.append({r.layer: r for r in observe(model, monitor, TOKENS, step=20, watch=watch)})
    for layer, reading in found[0].items():
        assert found[1][layer].value == reading.value
        assert abs(found[1][layer].detail["mean"]) == pytest.approx(abs(reading.detail["mean"]))


def test_a_matrix_that_is_not_finite_has_no_direction_and_the_others_have():
    model = tiny("llama")
    layer = find_anatomy(model).attention[0]
    layer.query.write(torch.full(layer.query.shape, math.inf))
    found = {r.layer for r in observe(model, SpectralAlignment(), TOKENS)}
    assert layer.query.name not in found and layer.key.name in found


def test_inputs_on_one_side_are_seen_and_balanced_ones_are_not():
    model = tiny("llama", dtype=torch.float64)
    matrix = find_anatomy(model).attention[0].query
    x = _inputs_of(model, matrix.name)
    values = []
    mean = x.mean(0) / x.mean(0).norm()
    widest = torch.linalg.svd(x - x.mean(0))[2][0]
    for direction in (mean, widest - (widest @ mean) * mean):
        matrix.write(torch.outer(_draws(matrix.shape[0], seed=1), direction))
        readings = values_of(observe(model, SpectralAlignment(), TOKENS), "sign_majority")
        values.append(readings[matrix.name])
    assert values[0] > 0.9 > 0.75 > values[1]
    rows = {f"layer.{i}": list(0.6 + 0.03 * noise(60, seed=i)) for i in range(3)}
    assert alarms_of("sign_majority", rows) == []
    rows["layer.0"][40:] = [0.98] * 20
    first = alarms_of("sign_majority", rows)[0]
    assert first.layer == "layer.0" and 40 <= first.step < 43
    one_sided = {"layer.0": [1.0] * 60}  # behind a norm with a bias: healthy from the start
    assert alarms_of("sign_majority", one_sided) == []
