"""Label a run from its curves by a named, versioned policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np


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

        Returns:
            The labels.
        """
        diverged = [self.has_diverged(run) for run in runs]
        finals = [self.final_loss(run) for run in runs]
        finite = [i for i, bad in enumerate(diverged) if not bad and math.isfinite(finals[i])]
        if not finite:
            excess = (math.inf,) * len(runs)
            outcomes = (Outcome.DIVERGED,) * len(runs)
            return Ladder(
                policy=self.name, outcomes=outcomes, excess=excess, best_rate=None, edge=None
            )
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
    best_rate: float | None
    edge: tuple[float, float | None] | None


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
