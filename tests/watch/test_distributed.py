"""Two processes on one machine: sharded weights, whole numbers.

Gloo on the CPU, FSDP2's `fully_shard`. Every rank trains on its own half of each batch, and one
process on the whole batch is the truth.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import destroy_process_group, init_process_group

from rksp.batch import Batch
from rksp.datasets.tasks import make_task
from rksp.models.zoo import build_member
from rksp.recipe import Recipe
from rksp.watch.monitors.registry import make_monitors
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.watch import Watch
from rksp.watch.training import run

SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 8,
}
STEPS, RANKS = 3, 2
# One spectral monitor beside the norm; every=1 so that three steps are enough.
WATCHED = ["gradient-norm:every=1", "stable-rank:every=1"]
RECIPE = Recipe(learning_rate=1e-2, max_steps=STEPS, schedule="constant", max_grad_norm=0.5)

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch was built without gloo",
)


def _batches() -> list[Batch]:
    return make_task("recall", length=8, vocab=32, pairs=2).batches(STEPS, 8, seed=0)


def _half(batch: Batch, rank: int) -> Batch:
    return Batch(inputs=batch.inputs[rank::RANKS], labels=batch.labels[rank::RANKS])


def _measured(model: torch.nn.Module, batches: list[Batch]) -> dict[str, object]:
    record = run(model, batches, RECIPE, watch=Watch(make_monitors(WATCHED), Rules()))
    readings = {f"{r.quantity}/{r.layer}/{r.step}": r.value for r in record.readings}
    return {
        "loss": record.curves.loss.tolist(),
        "grad_norm": record.curves.grad_norm.tolist(),
        "readings": readings,
        "silent": dict(record.silent),
    }


def _rank(rank: int, port: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
        model = build_member("zoo_pre_ln", SHAPE, seed=0)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert any(hasattr(p, "full_tensor") for p in model.parameters())
        found = _measured(model, [_half(batch, rank) for batch in _batches()])
        Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    finally:
        destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # As a script: a spawned process could not import this module, which is in no package.
    command = [sys.executable, "-P", __file__]
    started = [
        subprocess.Popen([*command, str(rank), str(port), str(folder)], stderr=subprocess.PIPE)
        for rank in range(RANKS)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * RANKS, errors[0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def alone() -> dict[str, object]:
    return _measured(build_member("zoo_pre_ln", SHAPE, seed=0), _batches())


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


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
