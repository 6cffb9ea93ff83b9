"""The bench of the lab compares equals."""

from __future__ import annotations

import torch
from support.benchmark_scripts import script

from rksp.watch.training import train

lab = script("lab")


def test_the_bare_loop_does_the_same_arithmetic() -> None:
    recipe, batches = lab._workload(6)
    ours, theirs, untrained = lab._model(), lab._model(), lab._model()
    train(ours, batches, recipe)
    lab._bare_loop(theirs, batches, recipe)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours.head.weight, untrained.head.weight, atol=1e-4)


def test_overhead_is_a_ratio_of_two_times() -> None:
    row = lab.overhead(steps=2, rounds=3)
    assert row["value"] > 0
    assert row["holds"] is (row["value"] <= lab.MAX_OVERHEAD)
    assert row["spread"] >= 0
    assert row["rounds"] == 3
