"""Planted faults in real runs: the right monitor speaks, and the healthy twin is silent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.benchmark_scripts import script

from lab.tasks.tasks import make_task
from lab.zoo import build_member
from rksp.own_runs.outcome import Outcome
from rksp.recipe import Recipe
from rksp.watch.monitors.rules import Rules
from rksp.watch.monitors.watch import Watch
from rksp.watch.registry import make_fault, make_monitors
from rksp.watch.training.loop import RunRecord, run

alarms = script("alarms")
false_alarms, healthy_run = alarms.false_alarms, alarms.healthy_run

STRUCK, STEPS, WARMUP = 60, 80, 10
MONITORS = (
    "loss", "gradient-norm", "non-finite", "update-rms:every=1", "output-log-z:every=2",
    "activation-range:every=2", "key-null-sum:every=2", "attention-logits:every=2",
    "attention-entropy:every=2", "router-entropy:every=2", "router-load:every=2",
)  # fmt: skip
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 32, "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def _run(
    fault: str | None,
    family: str = "zoo_pre_ln",
    learning_rate: float = 2e-3,
    monitors: Sequence[str] = MONITORS,
    seed: int = 0,
    **shape: int,
) -> RunRecord:
    recipe = Recipe(
        learning_rate=learning_rate, warmup_steps=WARMUP, max_steps=STEPS, schedule="constant",
        batch_size=8, sequence_length=32,
    )  # fmt: skip
    return run(
        build_member(family, SHAPE | shape, seed=seed),
        make_task("bytes", length=32).batches(STEPS, 8, seed=seed),
        recipe,
        watch=Watch(make_monitors(monitors), Rules(warmup_steps=WARMUP)),
        faults=[make_fault(fault)] if fault else [],
    )


def _first(record: RunRecord) -> dict[str, int]:
    """Monitor → step of its first alarm."""
    return {alarm.monitor: alarm.step for alarm in reversed(record.alarms)}


@pytest.mark.parametrize("family", ["zoo_pre_ln", "zoo_moe"])
def test_a_healthy_run_is_silent(family: str) -> None:
    record = _run(None, family)
    assert record.outcome is Outcome.HEALTHY and record.alarms == ()
    expected = {"router-entropy", "router-load"} if family == "zoo_pre_ln" else set()
    assert set(record.silent) == expected


@pytest.mark.parametrize(
    ("fault", "monitors", "delay"),
    [
        ("low_precision_attention:bits=7", {"key-null-sum"}, 0),
        ("large_rate:factor=100", {"loss", "attention-logits", "activation-range"}, 4),
        ("bitflip:where=weights,bit=30,name=feed_forward", {"activation-range", "loss"}, 2),
        ("bitflip:where=gradients,bit=30,name=attention", {"gradient-norm"}, 0),
        ("bitflip:where=activations,bit=30,name=blocks.1", {"non-finite"}, 0),
    ],
)
def test_a_fault_is_seen_by_the_monitors_that_are_for_it(
    fault: str, monitors: set[str], delay: int
) -> None:
    record = _run(f"{fault},step={STRUCK}")
    first = _first(record)
    assert monitors <= set(first) and min(first.values()) >= STRUCK
    assert all(first[name] <= STRUCK + delay for name in monitors)


def _overload(fault: str | None, seed: int) -> float:
    """The median excess of the fullest expert late in a run."""
    routed = {"num_experts": 8, "num_experts_per_tok": 1}
    record = _run(fault, "zoo_moe", 1e-2, ["router-load:every=2"], seed=seed, **routed)
    loads = [r for r in record.readings if r.quantity == "router_max_vio" and r.step > 60]
    return statistics.median(r.value for r in loads)


@pytest.mark.slow
def test_a_router_without_its_balance_loss_overloads_experts_beside_its_twin() -> None:
    # The loss does not show it: a healthy twin is what tells. One seed may have little more.
    fault = f"aux_off:step={WARMUP}"
    excess = [_overload(fault, seed) / _overload(None, seed) for seed in range(3)]
    assert statistics.median(excess) > 1.3


def test_false_alarms_are_counted_over_steps_after_the_warm_up(monkeypatch) -> None:
    monkeypatch.setattr(alarms, "WARMUP", 5)
    part = healthy_run("zoo_pre_ln", 0, steps=15, densest=5)
    rows = {row["monitor"]: row for row in false_alarms([part, part])}
    assert part.steps == 10 and rows["loss"]["readings"] == 2 * 2 * 15
    assert rows["all"]["readings"] == 2 * len(part.record.readings)
    assert rows["all"]["alarms"] == rows["all"]["per_1000_steps"] == 0
    struck = [
        replace(r, value=1.0) for r in part.record.readings if r.quantity == "non_finite_loss"
    ]
    bad = replace(part, record=replace(part.record, readings=tuple(struck)))
    rows = {row["monitor"]: row for row in false_alarms([part, bad])}
    assert rows["non-finite"]["alarms"] == rows["all"]["alarms"] == 1
    assert rows["all"]["per_1000_steps"] == 50
