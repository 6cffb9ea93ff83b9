"""Failures replayed small: the plan, the onset beside a twin, the tables, and bad batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lab.experiments.failures import FAILURES, Failures, has_failed
from lab.experiments.rows import TrialRow, departure
from rksp.datasets.batch import Batch
from rksp.ground.errors import InputError, NotCovered
from rksp.kernels.cross_entropy import IGNORED
from rksp.watch.faults.run_faults import BadBatches
from rksp.watch.monitors.base import Reading
from rksp.watch.monitors.rules import Judge, Rules
from rksp.watch.registry import make_fault


def test_every_failure_stands_beside_a_twin_that_differs_in_the_cause_alone() -> None:
    for failure in FAILURES:
        failing, twin, *arms = failure.trials(3)
        assert twin.is_twin and not failing.is_twin and failing.case == twin.case == failure.name
        assert {trial.seed for trial in (failing, twin, *arms)} == {3}
        same = {"case", "is_twin", "monitors", "seed", "task", "fault_step"}
        ours, theirs = (t.model_dump(exclude=same) for t in (failing, twin))
        assert ours != theirs
        assert all(bool(arm.monitors) == (arm.arm == "backoff") for arm in arms)


def test_a_run_departs_from_its_twin_where_it_stays_above_by_the_margin() -> None:
    twin = [2.0] * 40
    assert departure([2.0] * 20 + [2.5] * 20, twin, planned_steps=10) == 20
    assert departure([2.0] * 20 + [2.5] * 10 + [2.0] * 10, twin, planned_steps=10) is None
    assert departure([3.0] * 40, twin, planned_steps=10) == 0
    assert departure([2.0, None], twin, planned_steps=40) is None


def _row(seed: int, case: str, **fields: object) -> TrialRow:
    given = {"arm": "baseline", "rate": 0.1, "faults": (), "outcome": "healthy", "steps": 160}
    given |= {"final_loss": 2.0, "onset": None, "fault_step": 0, "first_alarms": {}, "alarms": {}}
    given |= {"silent": {}, "seconds": 1.0, "action_seconds": 0.0, "monitor_seconds": 0.0}
    return TrialRow(seed=seed, case=case, **given | fields)


def test_the_tables_count_failures_leads_rescues_and_false_alarms() -> None:
    failure = FAILURES[1]
    rows = []
    for seed in range(2):
        spoke = {"attention-logits": 30, "loss": 70} if seed else {"attention-logits": 40}
        rows += [
            _row(seed, failure.name, final_loss=2.5, onset=60, first_alarms=spoke),
            _row(seed, failure.name, is_twin=True, alarms={"loss": seed}),
            _row(seed, failure.name, arm="backoff", final_loss=2.1 + 0.4 * seed),
        ]
    spoken, total, saved = Failures(failures=[failure], seeds=range(2)).table(rows).split("\n\n")
    assert total == "Alarms in all healthy twins: 1 in 280 steps, 3.57 per 1,000."
    cells = [cell.strip() for cell in spoken.splitlines()[2].split("|")]
    assert cells[3:6] == ["2/2", "0/2", "+0.50"]
    assert cells[6:9] == ["attention-logits: 2/2, +25", "1/2, -10", "3.57"]  # 1 in 2 x 140 steps
    assert "| `backoff` | 1/2 | +0.30 |" in saved


def test_a_twin_that_ends_above_its_slower_self_is_not_healthy() -> None:
    failure = FAILURES[1]
    twins = [_row(seed, failure.name, is_twin=True, alarms={"loss": 1}) for seed in range(2)]
    slower = [
        _row(seed, failure.name, is_twin=True, arm="rate=0.1", final_loss=1.9 - 0.2 * seed)
        for seed in range(2)
    ]
    failing = [_row(seed, failure.name, final_loss=2.5) for seed in range(2)]
    spoken = Failures(failures=[failure], seeds=range(2)).table([*failing, *twins, *slower])
    cells = [cell.strip() for cell in spoken.splitlines()[2].split("|")]
    assert (cells[4], cells[8]) == ("1/2", "7.14")  # 1 in the 140 steps of the healthy one


def test_a_run_that_did_not_end_has_failed_and_one_near_its_twin_has_not() -> None:
    twins = {0: _row(0, "x", is_twin=True)}
    assert has_failed(_row(0, "x", final_loss=None), twins)
    assert has_failed(_row(0, "x", final_loss=2.3), twins)
    assert not has_failed(_row(0, "x", final_loss=2.2), twins)


def _batches() -> list[Batch]:
    rows = torch.arange(24).view(4, 2, 3)
    return [Batch(inputs=row, labels=row + 1) for row in rows]


def test_bad_batches_stand_in_their_steps_alone() -> None:
    given = _batches()
    given[2].labels[0, 0] = IGNORED
    fault = make_fault("bad_batches:step=1,steps=1")
    bad = fault.batches(given, per_step=2, seed=0)  # steps of two micro-batches
    assert bad[:2] == given[:2]
    for before, after in zip(given[2:], bad[2:], strict=True):
        assert torch.equal(before.inputs, after.inputs)
        assert not torch.equal(before.labels, after.labels)
        assert torch.equal(
            before.labels.flatten().sort().values, after.labels.flatten().sort().values
        )
        assert torch.equal(before.labels == IGNORED, after.labels == IGNORED)


def test_repeated_batches_hold_one_token() -> None:
    bad = BadBatches(step=0, steps=1, kind="repeated").batches(_batches(), per_step=1, seed=0)
    assert bad[0].inputs.unique().tolist() == bad[0].labels.unique().tolist() == [0]
    assert torch.equal(bad[1].inputs, _batches()[1].inputs)


def test_bad_batches_refuse_what_they_cannot_change() -> None:
    with pytest.raises(InputError, match="'labels' or 'repeated'"):
        make_fault("bad_batches:kind=odd")
    pictures = [Batch(inputs=torch.ones(1, 1, 8, 8), labels=torch.tensor([1]))]
    with pytest.raises(NotCovered, match="tokens"):
        BadBatches(step=0, steps=1, kind="repeated").batches(pictures, per_step=1, seed=0)


def _alarms(quantity: str, values: Sequence[float]) -> list[str]:
    judge, found = Judge(Rules()), []
    for step, value in enumerate(values):
        reading = Reading(monitor="any", quantity=quantity, layer="", step=step, value=value)
        found += [alarm.severity.value for alarm in judge.feed([reading])]
    return found


def test_an_optimizer_that_starves_is_named_from_the_first_step_and_never_critical() -> None:
    assert _alarms("starved_share", [0.9] * 30) == ["warn"]
    assert _alarms("epsilon_share", [0.9] * 30) == []  # it may be an embedding


def test_an_expert_that_never_lived_is_named_and_one_that_dies_becomes_critical() -> None:
    assert _alarms("router_dead_experts", [1.0] * 30) == ["warn"]
    assert _alarms("router_dead_experts", [0.0] + [1.0] * 30) == ["warn", "critical"]
    assert _alarms("router_dead_experts", [0.0] * 30) == []
