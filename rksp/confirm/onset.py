"""The onset of a failure, and each monitor's lead over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rksp.own_runs.outcome import Curves, OutcomePolicy
from rksp.watch.monitors.base import Alarm

LOSS, GRADIENT_NORM = "loss", "gradient-norm"  # the monitors that others must beat


def onset(curves: Curves, policy: OutcomePolicy) -> int | None:
    """Return the step at which the loss first shows that the run fails; None if it never does.

    It is the earlier of two steps: the first step that is not finite or exceeds the published
    thresholds, and the step at which the smoothed loss left its running minimum by the margin for
    good, if it later reached the spike height. The protocol of long runs (0.5 nats above the
    minimum for 100 steps) is applied to short runs with a window of a tenth of the planned steps.
    """
    loss, norm = curves.loss.astype(np.float64), curves.grad_norm.astype(np.float64)
    bad = ~np.isfinite(loss) | ~np.isfinite(norm)
    bad |= (loss > policy.max_loss) | (norm > policy.max_grad_norm)
    steps = np.flatnonzero(bad)[:1].tolist()
    finite = loss[np.isfinite(loss)]
    window = max(1, round(policy.final_share * curves.planned_steps))
    if len(finite) >= 2 * window:
        smooth = np.convolve(finite, np.full(window, 1 / window), "valid")
        excess = smooth - np.minimum.accumulate(smooth)
        left = int(np.flatnonzero(excess <= policy.margin)[-1]) + 1  # the minimum is always one
        if (excess[left:] > policy.spike_height).any():
            steps.append(left + window - 1)
    return min(steps, default=None)


def departure(
    loss: Sequence[float | None], twin: Sequence[float | None], *, planned_steps: int
) -> int | None:
    """Return the step from which a run's smoothed loss stays above its twin's by the margin.

    Args:
        loss: The run's loss of every step taken; None where it was not finite.
        twin: That of its twin.
        planned_steps: Steps of both; the loss is smoothed over a tenth of them.

    Returns:
        None if the run ends within the margin, or either of them has no smoothed loss.
    """
    policy = OutcomePolicy()
    window = max(1, round(policy.final_share * planned_steps))
    count = min(len(loss), len(twin))
    pair = np.array([loss[:count], twin[:count]], dtype=np.float64)
    if count < window:
        return None
    smooth = [np.convolve(part, np.full(window, 1 / window), "valid") for part in pair]
    near = np.flatnonzero(smooth[0] - smooth[1] <= policy.margin)
    left = int(near[-1]) + 1 if len(near) else 0
    return left + window - 1 if left < len(smooth[0]) else None


def first_alarms(alarms: Sequence[Alarm], *, since: int = 0) -> dict[str, int]:
    """Return the step of every monitor's first alarm at or after `since`."""
    found: dict[str, int] = {}
    for alarm in alarms:
        if alarm.step >= since:
            found[alarm.monitor] = min(alarm.step, found.get(alarm.monitor, alarm.step))
    return found


def leads(first: Mapping[str, int], at: int | None) -> dict[str, int]:
    """Return the steps by which each monitor came before `at`; negative if it came after."""
    return {} if at is None else {name: at - step for name, step in sorted(first.items())}
