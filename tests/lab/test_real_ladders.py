"""Public ladders and single runs are read with the edge that they show."""

from __future__ import annotations

import json
import math

import pytest

from lab.fit.real_ladders import read_real_ladders
from rksp.ground.errors import ArtifactError


def test_a_public_ladder_is_read_with_its_edge(tmp_path):
    row = {
        "id": "one",
        "group": "lab-of-someone",
        "parametrization": "SP",
        "arch": {"hidden_size": 64, "layers": 2, "vocab": 256, "seq_len": 32, "norm": "rmsnorm"},
        "recipe": {
            "optimizer": "adamw",
            "betas": [0.9, 0.95],
            "warmup_steps": 200,
            "schedule": "cosine",
            "min_lr": None,
            "batch_tokens": 1024,
            "steps": 100,
        },
        "rates": [0.01, 0.1, 1.0],
        "final_loss": [3.0, 3.1, None],
        "diverged": [False, False, True],
    }
    path = tmp_path / "ladders.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (read,) = read_real_ladders([path])
    assert read.inputs.peak_share == 0.5
    assert (read.low, read.high) == pytest.approx((math.log10(0.05), math.log10(0.5)))
    assert read.best == pytest.approx(math.log10(0.005))
    path.write_text('{"rates": [1]}\n')
    with pytest.raises(ArtifactError, match="line 1"):
        read_real_ladders([path])


def _warmup_row(losses: list[float]) -> dict[str, object]:
    arch = {"hidden_size": 96, "layers": 4, "heads": 4, "vocab": 256, "seq_len": 32}
    recipe = {"optimizer": "adamw", "betas": [0.9, 0.95], "learning_rate": 0.003}
    recipe |= {"schedule": "cosine", "min_lr": 3e-5, "batch_tokens": 1024, "steps": 5000}
    row = {"arch": arch | {"norm": "layernorm pre"}, "recipe": recipe}
    return row | {"warmup_steps": [100, 200, 400], "final_loss": losses}


def test_warm_ups_at_one_rate_are_no_ladder(tmp_path):
    assert read_real_ladders([_written(tmp_path, _warmup_row([3.5, 3.0, 3.5]))]) == []


def test_a_run_that_decays_less_than_its_base_fails_only_if_it_diverges(tmp_path):
    row = json.loads(
        '{"ladder": "marin-scion-130m-1x", "changed": "decay=0.0", "arch": {"hidden_size": 512, '
        '"layers": 32, "vocab": 1000, "seq_len": 4096, "norm": "rmsnorm pre"}, "recipe": '
        '{"optimizer": "scion", "betas": [0.9, 0.98], "warmup_steps": 0, "schedule": "linear", '
        '"decay_fraction": 0.0, "min_lr": 0.0, "batch_tokens": 1000, "steps": 5120, '
        '"learning_rate": 0.016}, "final_loss": 3.78, "baseline_loss": 3.48, "diverged": false, '
        '"failed": true}'
    )
    read = lambda **changes: read_real_ladders([_written(tmp_path, row | changes)])
    assert read() == []
    (diverged,) = read(diverged=True)
    assert diverged.failed[0] and diverged.inputs.late_share == 1.0
    (passed,) = read(failed=False, changed="decay=0.2")
    assert not passed.failed[0]
    (other,) = read(changed="beta1=0.98")  # it decays as its base does
    assert other.failed[0]


def _written(folder, row):
    path = folder / "runs.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return path


def test_ladders_of_more_sources_are_read_from_what_they_say(tmp_path):
    row = {
        "id": "study/one",
        "group": "muon-study",
        "method": "pretrain",
        "metric": "validation loss",
        "arch": {"family": "small transformer", "hidden_size": 128, "layers": 2, "vocab": None},
        "recipe": {
            "optimizer": "muon+adamw (momentum 0.9)",
            "betas": None,
            "warmup_steps": None,
            "schedule": None,
            "batch_sequences": 32,
            "batch_tokens": None,
            "seq_len": 256,
            "steps": 1500,
        },
        "rates": [0.03, 0.06, 0.12],
        "final_loss": [4.4, 4.5, 4.9],
        "failed": [False, False, False],
    }
    (read,) = read_real_ladders([_written(tmp_path, row)])
    assert (read.source, read.inputs.optimizer) == ("muon_study", "muon")
    scale = 0.2 * math.sqrt(128)  # a rate of Jordan's scale counts as one of AdamW's size
    ends = (math.log10(0.06 / scale), math.log10(0.12 / scale))
    assert (read.low, read.high) == pytest.approx(ends)
    assert (
        read_real_ladders([_written(tmp_path, row | {"arch": {**row["arch"], "layers": 0}})]) == []
    )
    run = {name: value for name, value in row.items() if name != "rates"}
    assert read_real_ladders([_written(tmp_path, run | {"rate": 0.1})]) == []


def _team_row(**more: object) -> dict[str, object]:
    arch = {"family": "llama", "hidden_size": 512, "layers": 4, "vocab": 10_000, "seq_len": 256}
    recipe = {"optimizer": "adamw", "warmup_steps": 200, "schedule": "cosine", "steps": 5000}
    row = {
        "id": "cs336/somebody/1",
        "group": "cs336-somebody",
        "source": "github.com/somebody/a1@1:writeup.md",
        "method": "pretrain",
        "trust": "high",
        "metric": "final validation loss, nats/token",
        "arch": arch | {"norm": "rmsnorm pre"},
        "recipe": recipe | {"batch_tokens": 8192},
        "rates": [1e-3, 3e-3, 1e-2, 3e-2],
        "final_loss": [1.5, 1.4, None, 2.4],
        "failed": [False, False, False, True],
        "diverged": [False, False, False, False],
    }
    return row | more


def test_a_team_is_a_source_and_a_run_without_a_loss_that_did_not_fail_passes(tmp_path):
    (read,) = read_real_ladders([_written(tmp_path, _team_row())])
    assert (read.source, read.block, read.team) == (
        "cs336_somebody",
        "cs336",
        "github.com/somebody/a1",
    )
    assert (read.low, read.high) == (-2.0, math.log10(3e-2))
    assert len(read.rates) == 3 and read.best == math.log10(3e-3)
    assert read.failed.tolist() == [False, False, True] and not read.diverged.any()


def test_a_metric_that_is_no_loss_bounds_the_edge_from_below(tmp_path):
    row = _team_row(metric="CORE", final_loss=[0.2, 0.21, 0.2, 0.19], failed=[False] * 4)
    (read,) = read_real_ladders([_written(tmp_path, row)])
    assert (read.low, read.high, read.best) == (math.log10(3e-2), math.inf, None)


@pytest.mark.parametrize("more", [{"trust": "low"}, {"notes": "rate of the matrix group"}])
def test_a_team_that_cannot_be_trusted_is_left_out(tmp_path, more):
    assert read_real_ladders([_written(tmp_path, _team_row(**more))]) == []


def test_a_run_that_failed_for_its_rate_bounds_the_edge_from_above(tmp_path):
    arch = {"family": "bert", "hidden_size": 768, "layers": 12}
    row = {
        "id": "somebody-1",
        "group": "somebody",
        "kind": "encoder mlm",
        "arch": arch,
        "recipe": {"batch_sequences": 512, "learning_rate": 4e-4},
        "cause": "rate too high",
    }
    (read,) = read_real_ladders([_written(tmp_path, row)])
    assert (read.low, read.high) == (-math.inf, math.log10(4e-4))
    assert read.inputs.masks and read.inputs.norm == "post"
    assert read_real_ladders([_written(tmp_path, row | {"cause": "fp16"})]) == []
