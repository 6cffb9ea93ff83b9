"""Back-off in two processes under `torchrun`: DDP in all four trainers, and FSDP2 by hand.

The rate leaps a thousandfold at one step, or one replica applies a wrong gradient; all ranks must
roll back together.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.places import TESTS
from support.trainers import BACKOFF, LEAP, MONITORS, TRAINERS, Planted, Setting, looped

from rksp.watch.attach.door import Watched

RANKS = 2
KINDS = (*TRAINERS, "fsdp2")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
        reason="this torch was built without gloo",
    ),
]


def _settings() -> Iterator[tuple[str, Setting]]:
    checked = (*MONITORS, "silent-corruption:every=1,checksum_every=1")
    wrong = f"replica:rank=1,where=gradients,step={LEAP},steps=1,scale=100,name=mlp.c_fc.weight"
    yield "healthy", Setting(monitors=checked)
    yield "leap", Setting(leap=1e3, responses=BACKOFF)
    yield "replica", Setting(monitors=checked, responses=[Planted(wrong), *BACKOFF])
    yield "replica alone", Setting(monitors=checked, responses=[Planted(wrong)])


def _fsdp2(folder: Path, setting: Setting) -> Watched:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    model = setting.model()
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, schedule = setting.optimizer(model)
    return looped(folder, model, optimizer, schedule, setting)


def _seen(loop: Watched) -> dict[str, object]:
    """Return what a rank saw, and a sum over its weights."""
    local = [getattr(p, "_local_tensor", p) for p in loop.session.model.parameters()]
    return {
        "losses": [r.value for r in loop.watch.readings if r.quantity == "loss"],
        "alarms": [[a.step, a.quantity] for a in loop.watch.alarms],
        "back": [a.step for a in loop.actions if a.what.startswith("rolled back")],
        "silent": dict(loop.watch.silent),
        "weights": float(sum(p.detach().double().abs().sum() for p in local)),
    }


def _main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {}
    for kind, trained in {**TRAINERS, "fsdp2": _fsdp2}.items():
        for name, setting in _settings():
            if kind == "fsdp2" and name.startswith("replica"):
                continue  # sharded weights have no replicas
            if kind != "plain" and name == "replica alone":
                continue  # one negative control
            found[f"{kind} {name}"] = _seen(trained(folder, setting))
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launch, "--nproc-per-node", str(RANKS), __file__, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def _last(run: dict) -> float:
    return sum(run["losses"][-5:]) / 5


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_rolls_back_at_the_same_step_and_the_run_is_saved(ranks, kind: str) -> None:
    healthy, saved = ranks[0][f"{kind} healthy"], ranks[0][f"{kind} leap"]
    assert ranks[1][f"{kind} leap"]["back"] == saved["back"] == [LEAP + 1]
    assert ranks[1][f"{kind} leap"]["losses"] == saved["losses"]
    assert saved["silent"] == {} and healthy["back"] == []
    assert _last(healthy) < healthy["losses"][0] - 1  # it learns
    assert abs(_last(saved) - _last(healthy)) < 0.1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fsdp2"])
def test_a_corrupted_replica_is_seen_at_the_next_step_and_taken_back(ranks, kind: str) -> None:
    healthy, saved, other = (
        ranks[0][f"{kind} healthy"], ranks[0][f"{kind} replica"], ranks[1][f"{kind} replica"]
    )  # fmt: skip
    assert healthy["alarms"] == []
    assert saved["alarms"][0] == [LEAP + 1, "checksum_mismatch"]
    assert saved["back"] == other["back"] == [LEAP + 1]
    assert saved["weights"] == other["weights"]  # the replicas are one model again
    assert abs(_last(saved) - _last(healthy)) < 0.1


def test_without_back_off_the_replicas_stay_apart(ranks) -> None:
    alone = [rank["plain replica alone"] for rank in ranks]
    assert alone[0]["weights"] != alone[1]["weights"] and alone[0]["back"] == []


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
