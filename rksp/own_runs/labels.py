"""Label past runs by rksp's own rule, as far as their trackers' words allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rksp.ground.text import words
from rksp.outcome import Curves, Outcome, OutcomePolicy
from rksp.own_runs.run import Curve

Ended = Literal["finished", "unfinished", "diverged"]
Label = Literal["diverged", "failed", "spiked", "undertrained", "healthy", "unfinished", "unknown"]

_FINISHED = words("finished complete completed success succeeded done terminated ok")
_DIVERGED = words("diverged nan inf exploded non-finite overflow")
_FAR = 1.0  # nats above the best, four times the margin: no full disk brings a loss there
_NEAR_END = 0.95  # of the planned steps; trackers log every so many
_DENSE = 20  # logged points from which a curve shows spikes and an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One run of a ladder, in nats and steps.

    Attributes:
        rate: Peak learning rate.
        final: Loss at its end, in nats; NaN where it has none.
        loss, grad_norm: Logged curves, if there are any.
        ended: How.
        outcome: A label that rksp made before; empty without one.
    """

    rate: float
    final: float
    loss: Curve | None
    grad_norm: Curve | None
    ended: Ended
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The label of one run, and the nats by which it ended above the best; NaN if unknown."""

    label: Label
    excess: float

    @property
    def failed(self) -> float:
        """1 and 0; NaN where nobody can tell."""
        if self.label in ("unfinished", "unknown"):
            return math.nan
        return float(self.label in ("diverged", "failed"))


def ended(state: str, final: float, loss: Curve | None, planned: int | None) -> Ended:
    """Tell how a run ended from its tracker's word and its values.

    A crash is no divergence: it may be a full disk. Values that are not finite are one, whatever
    the tracker says.

    Args:
        state: The tracker's word; empty if it has none.
        final: The last loss, in nats; NaN where it has none.
        loss: Its curve.
        planned: Steps of the whole run; None if nobody says.
    """
    word, policy = state.strip().lower(), OutcomePolicy()
    if word in _DIVERGED or math.isinf(final) or final > policy.max_loss:
        return "diverged"
    if loss is not None and len(loss.values):
        if not np.isfinite(loss.values).all() or (loss.values > policy.max_loss).any():
            return "diverged"
        if planned and loss.steps[-1] + 1 < _NEAR_END * planned:
            return "unfinished"
    if math.isnan(final) and (loss is None or not len(loss.values)):
        return "unfinished"
    return "finished" if not word or word in _FINISHED else "unfinished"


def judge(
    runs: Sequence[Trained], guess: float | None, entropy: float | None = None
) -> list[Judged]:
    """Label the runs of one ladder.

    With a dense curve of every run the whole rule holds, spikes too; otherwise the final losses
    decide. A run at a rate without another to compare with passes if it has learned.

    Args:
        runs: They differ in the rate, or in the seed.
        guess: Loss of a uniform guess, in nats; None if it is not known.
        entropy: Of the labels of a classifier, in nats; see `OutcomePolicy.of_labels`.
    """
    whole = [n for n, run in enumerate(runs) if run.ended != "unfinished"]
    labels: list[Judged] = [Judged(label="unfinished", excess=math.nan)] * len(runs)
    for n, found in zip(whole, _by_policy([runs[n] for n in whole], entropy), strict=True):
        labels[n] = found
    if len({run.rate for run in runs}) == 1:
        return [_alone(run, one, guess) for run, one in zip(runs, labels, strict=True)]
    for n, run in enumerate(runs):
        if run.ended == "unfinished" and _lags(run, [runs[i] for i in whole]):
            labels[n] = Judged(label="failed", excess=math.nan)
        elif run.outcome in {outcome.value for outcome in Outcome}:
            labels[n] = Judged(label=_label(Outcome(run.outcome)), excess=labels[n].excess)
    return labels


def final_loss(loss: Curve | None, planned: int | None) -> float:
    """Return the mean over the last tenth of a run, as the policy has it; NaN without a curve."""
    if loss is None or not len(loss.values):
        return math.nan
    end = max(planned or 0, int(loss.steps[-1]) + 1)
    start = end * (1 - OutcomePolicy().final_share)
    tail = loss.values[loss.steps >= start]
    return float(tail.mean() if len(tail) else loss.values[-1])


def _by_policy(runs: Sequence[Trained], entropy: float | None) -> list[Judged]:
    """Label whole runs by the policy of the lab."""
    if not runs:
        return []
    is_dense = all(
        run.ended == "diverged" or (run.loss is not None and len(run.loss.values) >= _DENSE)
        for run in runs
    )
    points = max((len(run.loss.values) for run in runs if run.loss is not None), default=1)
    curves = [_curves(run, points) if is_dense else _end(run) for run in runs]
    ladder = OutcomePolicy().of_labels(entropy).judge([run.rate for run in runs], curves)
    return [
        Judged(label=_label(outcome), excess=excess)
        for outcome, excess in zip(ladder.outcomes, ladder.excess, strict=True)
    ]


def _label(outcome: Outcome) -> Label:
    return outcome.value


def _curves(run: Trained, points: int) -> Curves:
    """Return the logged points as the steps of the policy; a run that diverged has fewer."""
    if run.ended == "diverged":
        return _end(run)
    loss = run.loss.values if run.loss is not None else np.array([run.final])
    norm = run.grad_norm.values if run.grad_norm is not None else np.zeros(1)
    return Curves(loss=loss, grad_norm=norm, planned_steps=min(points, len(loss)))


def _end(run: Trained) -> Curves:
    value = math.nan if run.ended == "diverged" else run.final
    return Curves(loss=np.array([value]), grad_norm=np.zeros(1), planned_steps=1)


def _alone(run: Trained, found: Judged, guess: float | None) -> Judged:
    """Label a run without others: only a divergence, or that it learned, can be seen."""
    if run.ended == "diverged":
        return Judged(label="diverged", excess=math.nan)
    if run.ended == "unfinished":
        return Judged(label="unfinished", excess=math.nan)
    if run.outcome in {outcome.value for outcome in Outcome}:
        return Judged(label=_label(Outcome(run.outcome)), excess=math.nan)
    margin = OutcomePolicy().margin
    start = run.loss.values[0] if run.loss is not None and len(run.loss.values) > 1 else guess
    has_learned = start is not None and run.final < start - margin
    is_lost = run.loss is not None and found.label == "failed"
    label: Label = "healthy" if has_learned and not is_lost else "unknown"
    return Judged(label=label, excess=math.nan)


def _lags(run: Trained, others: Sequence[Trained]) -> bool:
    """Tell whether a run that stopped early was already as much worse as a failed one is.

    It is compared at its own last step, with runs at lower rates alone. Where only its last loss is
    known it must lie far above theirs.
    """
    if run.loss is None or not len(run.loss.values):
        ends = [o.final for o in others if o.rate < run.rate and o.ended == "finished"]
        return bool(ends) and run.final > min(ends) + _FAR
    step = int(run.loss.steps[-1])
    lower = [
        float(np.interp(step, o.loss.steps, o.loss.values))
        for o in others
        if o.loss is not None and len(o.loss.values) and o.rate < run.rate and o.ended == "finished"
    ]
    tail = float(run.loss.values[-max(1, len(run.loss.values) // 10) :].mean())
    return bool(lower) and tail > min(lower) + OutcomePolicy().margin
