"""Two processes on one machine: sharded weights, whole numbers; replicas, compared.

Gloo on the CPU, FSDP2's `fully_shard`. Every rank trains on its own half of each batch, and one
process on the whole batch is the truth. The processes start once and do all the work.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.replicas import BOUNDS, RANKS, SHAPE, WAYS, batches, every_rank, measured, stepped

from lab.zoo import build_member

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
        reason="this torch was built without gloo",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(every_rank, args=(str(path),), nprocs=RANKS)
    return path


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict]:
    return [json.loads((folder / f"sharded-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def alone() -> dict[str, object]:
    return measured(build_member("zoo_pre_ln", SHAPE, seed=0), batches())


def test_loss_and_norm_of_sharded_weights_are_those_of_whole_ones(ranks, alone) -> None:
    for found in ranks:
        np.testing.assert_allclose(found["loss"], alone["loss"], rtol=1e-5)
        np.testing.assert_allclose(found["grad_norm"], alone["grad_norm"], rtol=1e-4)
    assert min(alone["grad_norm"]) > 0.5  # or nothing was clipped


def test_every_rank_takes_the_same_decisions(ranks) -> None:
    assert ranks[0]["loss"] == ranks[1]["loss"]
    assert ranks[0]["grad_norm"] == ranks[1]["grad_norm"]


@pytest.mark.parametrize("quantity", ["gradient_norm", "stable_rank"])
def test_readings_of_sharded_weights_are_those_of_whole_ones(ranks, alone, quantity) -> None:
    expected = {k: v for k, v in alone["readings"].items() if k.startswith(quantity + "/")}
    assert expected, f"nothing was read: {alone['silent']}"
    for found in ranks:
        read = {k: v for k, v in found["readings"].items() if k.startswith(quantity + "/")}
        assert sorted(read) == sorted(expected)
        for key, value in expected.items():
            assert math.isclose(read[key], value, rel_tol=1e-3), key


def test_replicas_are_compared_bit_by_bit(folder: Path) -> None:
    files = [folder / f"corrupted-{rank}.pt" for rank in range(RANKS)]
    seen = [torch.load(file, weights_only=False) for file in files]
    assert seen[0] == seen[1]
    readings, alarms, silent = seen[0]
    assert silent == {}
    assert [(r.step, r.value, r.layer) for r in readings] == [
        (0, 0.0, ""), (2, 0.0, ""), (4, 1.0, "blocks.1.attention.qkv.weight"),
    ]  # fmt: skip
    assert readings[-1].detail["rank"] == -1  # of two, nothing says which is right
    assert [(a.step, a.severity) for a in alarms] == [(4, "critical")]


def test_the_rank_whose_loss_differs_is_named_on_every_rank(folder: Path) -> None:
    for rank in range(RANKS):
        assert torch.load(folder / f"repeated-{rank}.pt") == [(12, "dropped the step", 1.0)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_act_on_replicated_sharded_and_split_weights_as_on_whole_ones(
    folder, bound, way
) -> None:
    alone = stepped(bound, "alone")
    files = [folder / f"{bound}-{way}-{rank}.pt" for rank in range(RANKS)]
    ranks = [torch.load(file, weights_only=False) for file in files]
    said = alone["said"].partition(", most of")[0]
    assert "scaled no" not in said
    for found in ranks:
        assert found["said"].startswith(said)
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, rtol=1e-4, atol=1e-5)
    for name, weight in ranks[0]["weights"].items():
        assert torch.equal(weight, ranks[1]["weights"][name]), name
