"""Monitors of routers against explicit pairs, softmaxes and counts; firing and silent."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from support.tiny_models import TOKENS, tiny
from support.watching import alarms_of, noise, observe, values_of
from torch import Tensor, nn

from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_anatomy
from rksp.watch.moment import Moment
from rksp.watch.monitors.routers import (
    RouterConditioning,
    RouterEntropy,
    RouterLoad,
    RouterSimilarity,
    mean_cosine,
)
from rksp.watch.monitors.watch import Watch

MOE = ("mixtral", "qwen3_moe", "deepseek_v3", "zoo_moe")


def _states(model: nn.Module) -> dict[str, Tensor]:
    """What enters every layer of experts, in one pass."""
    states, handles = {}, []
    for router in find_anatomy(model).routers:
        handles.append(
            router.block.register_forward_pre_hook(
                lambda m, args, kwargs, path=router.path: states.update(
                    {path: first_tensor((args, kwargs)).detach().flatten(0, -2)}
                ),
                with_kwargs=True,
            )
        )
    with torch.no_grad():
        model(TOKENS)
    for handle in handles:
        handle.remove()
    return states


# weights


@pytest.mark.parametrize("name", MOE)
def test_similarity_is_the_mean_over_pairs(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    found = values_of(observe(model, RouterSimilarity(), TOKENS), "router_similarity")
    expected = {}
    for router in find_anatomy(model).routers:
        rows = router.weight.detach()
        cosines = [
            float(torch.cosine_similarity(rows[i], rows[j], dim=0))
            for i, j in itertools.permutations(range(len(rows)), 2)
        ]
        expected[router.path] = sum(cosines) / len(cosines)
    assert found == pytest.approx(expected, abs=1e-12)


def test_similarity_of_opposites_equals_and_nothing() -> None:
    rows = torch.eye(5, dtype=torch.float64)
    assert float(mean_cosine(rows)) == pytest.approx(0.0, abs=1e-15)
    assert float(mean_cosine(rows - rows.mean(0))) == pytest.approx(-1 / 4)
    assert float(mean_cosine(torch.ones(5, 3))) == pytest.approx(1.0)
    model = tiny("mixtral")
    routers = find_anatomy(model).routers
    with torch.no_grad():
        routers[0].weight[1].zero_()
    found = observe(model, RouterSimilarity(), TOKENS)
    assert {r.layer for r in found} == {router.path for router in routers[1:]}


@pytest.mark.parametrize("name", MOE)
def test_both_conditionings_by_hand(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    readings = observe(model, RouterConditioning(), TOKENS)
    ratio, energy = {}, {}
    for router in find_anatomy(model).routers:
        rows = router.weight.detach().numpy()
        mean = rows.mean(0)
        lengths = [np.linalg.norm(row - mean) for row in rows]
        ratio[router.path] = max(lengths) / np.linalg.norm(mean)
        energy[router.path] = (rows**2).sum() - len(rows) * (mean**2).sum()
    assert values_of(readings, "router_cond_ratio") == pytest.approx(ratio, rel=1e-9)
    assert values_of(readings, "router_centered_energy") == pytest.approx(energy, rel=1e-9)
    first = readings[0]
    assert first.detail["concentration"] == pytest.approx(energy[first.layer] / 8, rel=1e-9)


def test_conditioning_of_independent_rows_and_of_one_mean() -> None:
    model = tiny("mixtral")
    router = find_anatomy(model).routers[0]
    with torch.no_grad():
        router.weight.copy_(torch.eye(4, 32))
    monitor = RouterConditioning()
    monitor.bind(model)
    values = []
    for shift in (0.0, 100.0):
        with torch.no_grad():
            router.weight.add_(shift)
        found = monitor.read(Moment(step=0, model=model))
        values.append([values_of(found, q)[router.path] for q in (
            "router_cond_ratio", "router_centered_energy",
        )])  # fmt: skip
    assert values[0][0] == pytest.approx(math.sqrt(3)) and values[1][0] < 0.01
    assert values[0][1] == pytest.approx(3.0) == pytest.approx(values[1][1], rel=1e-3)


# tokens


@pytest.mark.parametrize("name", MOE)
def test_entropy_is_that_of_explicit_probabilities(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    states = _states(model)
    readings = observe(model, RouterEntropy(), TOKENS)
    expected = {}
    for router in find_anatomy(model).routers:
        logits = states[router.path] @ router.weight.detach().T
        p = logits.sigmoid() if name == "deepseek_v3" else logits.exp()
        p = p / p.sum(-1, keepdim=True)
        expected[router.path] = float(-(p * p.log()).sum(-1).mean())
    quantity = "router_entropy_sigmoid" if name == "deepseek_v3" else "router_entropy"
    assert values_of(readings, quantity) == pytest.approx(expected, rel=1e-5)
    first = readings[0]
    assert first.detail["normalized"] == pytest.approx(first.value / math.log(4), rel=1e-9)
    assert first.detail["lowest"] <= first.detail["median"] <= math.log(4) + 1e-6


def test_undecided_and_decided_routers() -> None:
    found = []
    for factor in (0.0, 1.0, 1e3):
        model = tiny("mixtral")
        with torch.no_grad():
            for router in find_anatomy(model).routers:
                router.weight.mul_(factor)
        found.append(values_of(observe(model, RouterEntropy(), TOKENS), "router_entropy"))
    for layer in found[0]:
        assert found[0][layer] == pytest.approx(math.log(4), rel=1e-6)
        assert found[0][layer] > found[1][layer] > found[2][layer]
        assert found[2][layer] < 0.05


@pytest.mark.parametrize("name", MOE)
def test_load_is_that_of_counted_choices(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    for router in find_anatomy(model).routers:
        if router.correction is not None:
            router.correction.copy_(torch.tensor([0.3, 0.0, -0.2, 0.0]))
    states = _states(model)
    readings = observe(model, RouterLoad(), TOKENS)
    expected, smallest = {}, {}
    for router in find_anatomy(model).routers:
        scores = states[router.path] @ router.weight.detach().T
        if router.correction is not None:
            scores = scores.sigmoid() + router.correction
        counts = np.bincount(scores.topk(2).indices.flatten().numpy(), minlength=4)
        expected[router.path] = counts.max() / counts.mean() - 1
        smallest[router.path] = counts.min() / counts.mean()
    assert values_of(readings, "router_max_vio") == pytest.approx(expected, rel=1e-6)
    assert {r.layer: r.detail["smallest"] for r in readings} == pytest.approx(smallest)


def test_even_and_one_sided_loads() -> None:
    router = find_anatomy(model := tiny("mixtral")).routers[0]
    monitor = RouterLoad()
    monitor.bind(model)
    even, single = (
        monitor.readings_of(router, torch.tensor(load), 0)[0]
        for load in ([10, 10, 10, 10], [40, 0, 0, 0])
    )
    assert (even.value, even.detail["smallest"]) == pytest.approx((0, 1))
    assert (single.value, single.detail["smallest"]) == pytest.approx((3, 0))


def test_an_expert_is_dead_after_three_windows() -> None:
    router = find_anatomy(model := tiny("mixtral")).routers[0]
    monitor = RouterLoad()
    monitor.bind(model)
    dead = []
    for step in range(12):  # 4,000 tokens make a window: two samples here
        readings = monitor.readings_of(router, torch.tensor([1000, 1000, 990, 10]), step)
        dead += [(r.step, r.value) for r in readings if r.quantity == "router_dead_experts"]
    assert dead[0] == (5, 1.0) and {value for _, value in dead} == {1.0}
    rows = [0.0] * 20 + [1.0] * 5
    assert alarms_of("router_dead_experts", {"a": rows[:20]}) == []
    assert alarms_of("router_dead_experts", {"a": rows})[0].step == 20


def test_what_the_first_micro_batch_alone_shows() -> None:
    model = tiny("mixtral")
    watch = Watch([RouterEntropy(every=1)])
    watch.bind(model)
    watch.begin_step(0)
    for tokens in (TOKENS, TOKENS.flip(1)):
        model(tokens).logits.sum().backward()
    watch.after_backward(Moment(step=0, model=model))
    alone = values_of(observe(model, RouterEntropy(), TOKENS), "router_entropy")
    assert values_of(watch.readings, "router_entropy") == alone


@pytest.mark.parametrize(
    ("quantity", "healthy", "spread", "sick", "advice"),
    [
        ("router_similarity", 0.01, 0.005, 0.35, "backoff"),
        ("router_cond_ratio", 2.5, 0.1, 0.3, "backoff"),
        ("router_centered_energy", 1.0, 0.05, 40.0, "backoff"),
        ("router_entropy", 1.2, 0.02, 0.1, "backoff"),
        ("router_entropy_sigmoid", 1.2, 0.02, 0.1, "backoff"),
        ("router_max_vio", 0.3, 0.05, 2.8, ""),
    ],
)
def test_alarms_at_what_is_sick_and_not_at_what_is_healthy(
    quantity: str, healthy: float, spread: float, sick: float, advice: str
) -> None:
    rows = {f"layer.{i}": list(healthy + spread * noise(120, seed=i)) for i in range(3)}
    assert alarms_of(quantity, rows) == []
    rows["layer.2"][90:] = [sick] * 30
    first = alarms_of(quantity, rows)[0]
    assert (first.layer, first.advice) == ("layer.2", advice) and 90 <= first.step < 93


@pytest.mark.parametrize(
    "monitor", [RouterSimilarity(), RouterConditioning(), RouterEntropy(), RouterLoad()]
)
def test_a_dense_model_has_no_router(monitor) -> None:
    assert monitor.bind(tiny("llama")) == "the model has no router"
