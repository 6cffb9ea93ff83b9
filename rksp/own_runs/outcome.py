"""Label runs by a named, versioned policy, as far as curves or a tracker's words allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np

from rksp.ground.text import words
from rksp.own_runs.course import Fate, course
from rksp.own_runs.run import Curve


class Outcome(StrEnum):
    """The label of one run within its ladder of learning rates.

    `DIVERGED` and `FAILED_PLATEAU` together are the runs called *failed*.
    """

    DIVERGED = "diverged"  # non-finite, or past the published thresholds
    FAILED_PLATEAU = "failed"  # finite, above the best rate, and worse than it by the margin
    SPIKED = "spiked"  # left its running minimum by the spike height and came back
    UNDERTRAINED = "undertrained"  # below the best rate, and worse than it by the margin
    HEALTHY = "healthy"

    @property
    def is_failure(self) -> bool:
        """Whether the run failed."""
        return self in (Outcome.DIVERGED, Outcome.FAILED_PLATEAU)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The curves of a run, one entry per step that was taken.

    Attributes:
        loss: Raw training loss in nats before the step, `[steps]` float32.
        grad_norm: Global gradient norm before clipping, `[steps]` float32; a step whose loss was
            not finite has no gradient and holds NaN.
        planned_steps: Steps that the recipe asked for; a stopped run took fewer.
    """

    loss: np.ndarray
    grad_norm: np.ndarray
    planned_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomePolicy:
    """The rules that turn curves into labels; whoever changes a number must change the name.

    A run *diverged* if a loss or gradient norm was not finite, or exceeded `max_loss` or
    `max_grad_norm` (the thresholds of arXiv 2602.22988). The *final* loss is the mean over the
    last `final_share` of the planned steps. A run above the best rate of its ladder *failed* if
    its final loss is more than `margin` nats above the best. A run below the best rate failed if it
    is worse by as much because of a spike: its smoothed loss rose above its running minimum by
    `spike_height` and ended more than `margin` above that minimum. The loss is smoothed over as
    many steps as the final loss averages, because with a shorter window the noise of small batches
    alone looked like spikes.
    """

    name: str = "ladder-1"
    max_loss: float = 50.0
    max_grad_norm: float = 500.0
    final_share: float = 0.1
    margin: float = 0.25
    spike_height: float = 0.5

    def of_labels(self, entropy: float | None) -> OutcomePolicy:
        """Return the policy of a task whose labels have this entropy, in nats; None: not known.

        The margin is at most an eighth of it: of two classes alike in number, 0.09 nats. A quarter
        of a nat would be a third of all that there is to learn.
        """
        return self if entropy is None else replace(self, margin=min(self.margin, entropy / 8))

    def has_diverged(self, curves: Curves) -> bool:
        """Tell whether the published label holds, or a value is not finite."""
        loss, norm = curves.loss, curves.grad_norm
        if not (np.isfinite(loss).all() and np.isfinite(norm).all()):
            return True
        return bool((loss > self.max_loss).any() or (norm > self.max_grad_norm).any())

    def final_loss(self, curves: Curves) -> float:
        """Return the mean loss over the last tenth of the run; infinite if it stopped before."""
        tail = max(1, round(self.final_share * curves.planned_steps))
        if len(curves.loss) < curves.planned_steps or not np.isfinite(curves.loss[-tail:]).all():
            return math.inf
        return float(curves.loss[-tail:].mean(dtype=np.float64))

    def spike(self, curves: Curves) -> tuple[bool, bool]:
        """Tell whether the smoothed loss rose by the spike height, and whether it stayed high."""
        loss = curves.loss[np.isfinite(curves.loss)].astype(np.float64)
        window = max(1, round(self.final_share * curves.planned_steps))
        if len(loss) < 2 * window:
            return False, False
        smooth = np.convolve(loss, np.full(window, 1 / window), "valid")
        lowest = np.minimum.accumulate(smooth)
        left = bool((smooth > lowest + self.spike_height).any())
        return left, left and self.final_loss(curves) > lowest[-1] + self.margin

    def judge(self, rates: Sequence[float], runs: Sequence[Curves]) -> Ladder:
        """Label the runs of one ladder.

        Args:
            rates: Learning rate of each run, distinct, in any order.
            runs: The runs' curves in the same order; they share everything but the rate.
        """
        diverged = [self.has_diverged(run) for run in runs]
        finals = [self.final_loss(run) for run in runs]
        finite = [i for i, bad in enumerate(diverged) if not bad and math.isfinite(finals[i])]
        if not finite:
            outcomes, excess = (Outcome.DIVERGED,) * len(runs), (math.inf,) * len(runs)
            return Ladder(policy=self.name, outcomes=outcomes, excess=excess)
        best = min(finite, key=lambda i: finals[i])
        excess = tuple(final - finals[best] for final in finals)
        outcomes = tuple(
            self._label(run, bad, over, rate - rates[best])
            for run, bad, over, rate in zip(runs, diverged, excess, rates, strict=True)
        )
        return Ladder(
            policy=self.name,
            outcomes=outcomes,
            excess=excess,
            best_rate=rates[best],
            edge=_edge(rates, outcomes, rates[best]),
        )

    def _label(self, run: Curves, diverged: bool, excess: float, above: float) -> Outcome:
        if diverged:
            return Outcome.DIVERGED
        spiked, lost = self.spike(run)
        if excess > self.margin:
            failed = above > 0 or lost
            return Outcome.FAILED_PLATEAU if failed else Outcome.UNDERTRAINED
        return Outcome.SPIKED if spiked else Outcome.HEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The labels of one ladder.

    Attributes:
        policy: Name of the policy that made them.
        outcomes: One per run, in the order given.
        excess: Final loss minus the ladder's best, in nats; infinite without a final loss.
        best_rate: The rate of the lowest final loss, or None if every run diverged.
        edge: (largest rate before the first failure at or above the best rate, that failure's
            rate). The second is None if nothing failed; the pair is None if everything diverged.
    """

    policy: str
    outcomes: tuple[Outcome, ...]
    excess: tuple[float, ...]
    best_rate: float | None = None
    edge: tuple[float, float | None] | None = None


def _edge(
    rates: Sequence[float], outcomes: Sequence[Outcome], best: float
) -> tuple[float, float | None]:
    last = best
    for rate, outcome in sorted(zip(rates, outcomes, strict=True)):
        if rate < best:
            continue
        if outcome.is_failure:
            return last, rate
        last = rate
    return last, None


Ended = Literal["finished", "unfinished", "diverged"]

_LABELS = frozenset(outcome.value for outcome in Outcome)
_FINISHED = words("finished complete completed success succeeded done terminated ok")
_DIVERGED = words("diverged nan inf exploded non-finite overflow")
_FAR = 1.0  # nats above the best, four times the margin: no full disk brings a loss there
_NEAR_END = 0.95  # of the planned steps; trackers log every so many
_RISEN = (Fate.DIVERGED, Fate.SPIKE_UNRECOVERED)
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
    """The label of one run, and the nats by which it ended above the best; NaN if unknown.

    The label is one of `Outcome`, unfinished or unknown.
    """

    label: str
    excess: float = math.nan

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
        found = course(loss.steps, loss.values)
        has_risen = found.fate in _RISEN and found.ended - found.level > policy.margin
        if has_risen and len(loss.values) >= _DENSE:  # for good, wherever it stopped
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
    labels = [Judged(label="unfinished")] * len(runs)
    for n, found in zip(whole, _by_policy([runs[n] for n in whole], entropy), strict=True):
        labels[n] = found
    if len({run.rate for run in runs}) == 1:
        return [_alone(run, one, guess) for run, one in zip(runs, labels, strict=True)]
    for n, run in enumerate(runs):
        if run.ended == "unfinished" and _lags(run, [runs[i] for i in whole]):
            labels[n] = Judged(label="failed")
        elif run.outcome in _LABELS:
            labels[n] = replace(labels[n], label=run.outcome)
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
        Judged(label=outcome.value, excess=excess)
        for outcome, excess in zip(ladder.outcomes, ladder.excess, strict=True)
    ]


def _curves(run: Trained, points: int) -> Curves:
    if run.ended == "diverged":
        return _end(run)
    loss = run.loss.values if run.loss is not None else np.array([run.final])
    norm = run.grad_norm.values if run.grad_norm is not None else np.zeros(1)
    return Curves(loss=loss, grad_norm=norm, planned_steps=min(points, len(loss)))


def _end(run: Trained) -> Curves:
    value = math.nan if run.ended == "diverged" else run.final
    return Curves(loss=np.array([value]), grad_norm=np.zeros(1), planned_steps=1)


def _alone(run: Trained, found: Judged, guess: float | None) -> Judged:
    if run.ended != "finished":
        return Judged(label=run.ended)
    if run.outcome in _LABELS:
        return Judged(label=run.outcome)
    margin = OutcomePolicy().margin
    start = run.loss.values[0] if run.loss is not None and len(run.loss.values) > 1 else guess
    has_learned = start is not None and run.final < start - margin
    is_lost = run.loss is not None and found.label == "failed"
    return Judged(label="healthy" if has_learned and not is_lost else "unknown")


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
