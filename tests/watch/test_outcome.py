"""The labels on curves drawn by hand, at and beside every threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rksp.own_runs.outcome import Curves, Outcome, OutcomePolicy

STEPS = 100
POLICY = OutcomePolicy()


def _curves(loss: np.ndarray, norm: np.ndarray | None = None, planned: int = STEPS) -> Curves:
    norms = np.ones(len(loss)) if norm is None else norm
    return Curves(
        loss=np.asarray(loss, dtype=np.float32),
        grad_norm=np.asarray(norms, dtype=np.float32),
        planned_steps=planned,
    )


def _falling(end: float, start: float = 5.0) -> np.ndarray:
    """Falls in a straight line over the first half and stays."""
    return np.concatenate([np.linspace(start, end, STEPS // 2), np.full(STEPS // 2, end)])


def _spiking(end: float, height: float, *, after: float | None = None) -> np.ndarray:
    loss = _falling(end)
    loss[60:70] += height
    if after is not None:
        loss[70:] = after
    return loss


def _outcomes(curves: dict[float, Curves], policy: OutcomePolicy = POLICY) -> list[Outcome]:
    return list(policy.judge(list(curves), list(curves.values())).outcomes)


def test_a_ladder_with_every_label() -> None:
    ladder = POLICY.judge(
        [1e-4, 1e-3, 2e-3, 3e-3, 1e-2, 1e-1],
        [
            _curves(_falling(4.0)),  # too slow
            _curves(_falling(2.0)),  # the best
            _curves(_falling(2.2)),  # within the margin
            _curves(_spiking(2.1, 3.0)),  # left and came back
            _curves(_falling(4.0)),  # the same plateau as the first, on the other side
            _curves(np.array([5.0, 60.0, np.nan]), np.array([1.0, 10.0, np.nan])),
        ],
    )
    assert ladder.outcomes == (
        Outcome.UNDERTRAINED,
        Outcome.HEALTHY,
        Outcome.HEALTHY,
        Outcome.SPIKED,
        Outcome.FAILED_PLATEAU,
        Outcome.DIVERGED,
    )
    assert ladder.best_rate == 1e-3
    assert ladder.edge == (3e-3, 1e-2)
    assert ladder.excess == pytest.approx((2.0, 0.0, 0.2, 0.1, 2.0, math.inf), abs=1e-6)
    assert ladder.policy == POLICY.name == "ladder-1"


def test_failures_are_the_diverged_and_the_plateaus() -> None:
    failing = {outcome for outcome in Outcome if outcome.is_failure}
    assert failing == {Outcome.DIVERGED, Outcome.FAILED_PLATEAU}


@pytest.mark.parametrize(
    ("loss", "norm", "diverged"),
    [
        (50.0, 1.0, False),
        (50.001, 1.0, True),
        (1.0, 500.0, False),
        (1.0, 500.01, True),
        (math.nan, 1.0, True),
        (math.inf, 1.0, True),
        (1.0, math.nan, True),
        (1.0, math.inf, True),
    ],
)
def test_divergence_at_the_published_thresholds(loss: float, norm: float, diverged: bool) -> None:
    losses, norms = _falling(2.0), np.ones(STEPS)
    losses[30], norms[30] = loss, norm  # one step in the middle is enough
    assert POLICY.has_diverged(_curves(losses, norms)) is diverged
    assert not POLICY.has_diverged(_curves(_falling(2.0)))


def test_final_loss_is_the_mean_of_the_last_tenth() -> None:
    loss = np.arange(100, dtype=np.float64)
    assert POLICY.final_loss(_curves(loss)) == pytest.approx(94.5)
    assert POLICY.final_loss(_curves(np.array([7.0, 3.0]), planned=2)) == 3.0  # at least one step
    assert POLICY.final_loss(_curves(loss[:99], planned=100)) == math.inf  # never got there
    loss[95] = np.nan
    assert POLICY.final_loss(_curves(loss)) == math.inf


@pytest.mark.parametrize(("over", "label"), [(0.24, Outcome.HEALTHY), (0.26, Outcome.UNDERTRAINED)])
def test_the_margin_below_the_best(over: float, label: Outcome) -> None:
    runs = {1e-4: _curves(_falling(2.0 + over)), 1e-3: _curves(_falling(2.0))}
    assert _outcomes(runs) == [label, Outcome.HEALTHY]


@pytest.mark.parametrize(
    ("over", "label"), [(0.24, Outcome.HEALTHY), (0.26, Outcome.FAILED_PLATEAU)]
)
def test_the_margin_above_the_best(over: float, label: Outcome) -> None:
    runs = {1e-3: _curves(_falling(2.0)), 1e-2: _curves(_falling(2.0 + over))}
    assert _outcomes(runs) == [Outcome.HEALTHY, label]


def test_a_named_policy_moves_the_margin() -> None:
    runs = {1e-3: _curves(_falling(2.0)), 1e-2: _curves(_falling(2.4))}
    wide = OutcomePolicy(name="wide", margin=0.5)
    assert _outcomes(runs)[1] is Outcome.FAILED_PLATEAU
    assert _outcomes(runs, wide)[1] is Outcome.HEALTHY
    assert wide.judge(list(runs), list(runs.values())).policy == "wide"


def test_spikes() -> None:
    assert POLICY.spike(_curves(_falling(2.0))) == (False, False)
    assert POLICY.spike(_curves(_spiking(2.0, 0.4))) == (False, False)  # not high enough
    assert POLICY.spike(_curves(_spiking(2.0, 0.6))) == (True, False)
    assert POLICY.spike(_curves(_spiking(2.0, 3.0, after=2.2))) == (True, False)  # in the margin
    assert POLICY.spike(_curves(_spiking(2.0, 3.0, after=2.3))) == (True, True)


def test_one_noisy_step_is_no_spike() -> None:
    loss = _falling(2.0)
    loss[70] += 4.8  # over ten steps 0.48: below the spike height
    assert POLICY.spike(_curves(loss)) == (False, False)
    loss[70] += 0.4
    assert POLICY.spike(_curves(loss)) == (True, False)


def test_a_spike_that_never_came_back_failed_at_any_rate() -> None:
    lost = _curves(_spiking(2.0, 3.0, after=4.0))
    runs = {1e-4: lost, 1e-3: _curves(_falling(1.0))}
    assert _outcomes(runs) == [Outcome.FAILED_PLATEAU, Outcome.HEALTHY]
    # Close to the best it is only spiked, and its twin that was always that bad is merely slow.
    assert _outcomes(runs | {1e-3: _curves(_falling(3.8))})[0] is Outcome.SPIKED
    assert _outcomes(runs | {1e-4: _curves(_falling(4.0))})[0] is Outcome.UNDERTRAINED


def test_smoothing_is_over_as_many_steps_as_the_final_loss() -> None:
    loss = np.ones(40)
    loss[20:24] += 2.0  # over four steps 2.0, over forty 0.2
    assert POLICY.spike(_curves(loss, planned=40)) == (True, False)
    assert POLICY.spike(_curves(loss, planned=400)) == (False, False)


def test_runs_too_short_for_smoothing_have_no_spikes() -> None:
    stopped = np.concatenate([np.ones(10), np.full(9, 9.0)])  # 19 steps, windows of 10
    assert POLICY.spike(_curves(stopped)) == (False, False)
    assert POLICY.spike(_curves(np.append(stopped, 9.0)))[0]


def test_a_ladder_where_all_diverged_has_no_edge() -> None:
    bad = _curves(np.array([5.0, np.nan]), np.array([1.0, np.nan]))
    ladder = POLICY.judge([1e-3, 1e-2], [bad, bad])
    assert ladder.outcomes == (Outcome.DIVERGED, Outcome.DIVERGED)
    assert ladder.excess == (math.inf, math.inf)
    assert ladder.best_rate is None
    assert ladder.edge is None


def test_a_ladder_where_nothing_failed_has_an_open_edge() -> None:
    ladder = POLICY.judge([1e-3, 1e-2], [_curves(_falling(2.1)), _curves(_falling(2.0))])
    assert ladder.edge == (1e-2, None)


def test_the_edge_ignores_failures_below_the_best_rate() -> None:
    bad = _curves(np.array([5.0, np.nan]), np.array([1.0, np.nan]))
    runs = {
        1e-4: bad,
        1e-3: _curves(_falling(2.0)),
        1e-2: _curves(_falling(2.1)),
        1e-1: bad,
        1.0: _curves(_falling(2.2)),  # an island above the first failure does not move the edge
    }
    assert POLICY.judge(list(runs), list(runs.values())).edge == (1e-2, 1e-1)


def test_a_spiked_run_is_not_the_edge() -> None:
    runs = {1e-3: _curves(_falling(2.0)), 1e-2: _curves(_spiking(2.1, 3.0))}
    assert POLICY.judge(list(runs), list(runs.values())).edge == (1e-2, None)


def test_the_order_of_the_runs_does_not_matter() -> None:
    runs = {
        1e-4: _curves(_falling(4.0)),
        1e-3: _curves(_falling(2.0)),
        1e-2: _curves(_falling(3.0)),
    }
    there = POLICY.judge(list(runs), list(runs.values()))
    back = POLICY.judge(list(runs)[::-1], list(runs.values())[::-1])
    assert back.outcomes == there.outcomes[::-1]
    assert back.excess == there.excess[::-1]
    assert (back.best_rate, back.edge) == (there.best_rate, there.edge)


def test_a_diverged_run_is_never_the_best() -> None:
    tempting = _falling(0.5)
    tempting[10] = 51.0
    runs = {1e-3: _curves(_falling(2.0)), 1e-2: _curves(tempting)}
    ladder = POLICY.judge(list(runs), list(runs.values()))
    assert ladder.best_rate == 1e-3
    assert ladder.outcomes[1] is Outcome.DIVERGED
