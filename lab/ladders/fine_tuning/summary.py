"""Say of one ladder where it was best, where it failed, where it forgot, and what a rate cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lab.ladders.fine_tuning.ladder import FineTunedLadder
from lab.ladders.ladder import POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderSummary:
    """Rates of one ladder; None where the ladder has none.

    Attributes:
        ladder: The ladder.
        best_training: Rate of the lowest final training loss.
        best: Rate of the lowest held-out loss of the new task.
        first_failed: First failing rate at or above `best_training`, by the policy.
        first_held_out_failed: First rate above `best` whose held-out loss exceeds the ladder's
            lowest by the margin.
        first_forgetting: First rate at which the old task's held-out loss is more than the margin
            above its value before training, and stays so at every higher rate.
        first_worse: First rate from which on every run is worse, on held-out data of the new
            task, than not training.
        gain: Nats that the best run gained on held-out data; negative if none did.
    """

    ladder: FineTunedLadder
    best_training: float | None
    best: float | None
    first_failed: float | None
    first_held_out_failed: float | None
    first_forgetting: float | None
    first_worse: float | None
    gain: float

    def regret(self, rate: float) -> float:
        """Return the held-out loss at a rate minus the ladder's lowest, in nats.

        It is interpolated between the ladder's rates on a logarithmic axis, and that of the border
        beyond them. Infinite if a neighbour has no finite loss.
        """
        rates = np.log(self.ladder.rates)
        losses = np.array([_finite(after.new) for after in self.ladder.after])
        at = float(np.clip(math.log(rate), rates[0], rates[-1]))
        above = int(np.clip(np.searchsorted(rates, at), 1, len(rates) - 1))
        share = (at - rates[above - 1]) / (rates[above] - rates[above - 1])
        parts = ((1 - share, losses[above - 1]), (share, losses[above]))
        found = sum(weight * loss for weight, loss in parts if weight > 0)
        return float(found - losses.min())


def summarize(ladder: FineTunedLadder) -> LadderSummary:
    """Find the rates of a ladder; the margin of failing and forgetting is the policy's."""
    judged = ladder.judge()
    new = [_finite(after.new) for after in ladder.after]
    old = [_finite(after.old) for after in ladder.after]
    lowest = min(new)
    best = None if math.isinf(lowest) else ladder.rates[new.index(lowest)]
    return LadderSummary(
        ladder=ladder,
        best_training=judged.best_rate,
        best=best,
        first_failed=ladder.rates[0] if judged.edge is None else judged.edge[1],
        first_held_out_failed=next(
            (
                rate
                for rate, loss in zip(ladder.rates, new, strict=True)
                if (best is None or rate > best) and loss > lowest + POLICY.margin
            ),
            None,
        ),
        first_forgetting=_from(ladder.rates, old, ladder.before.old + POLICY.margin),
        first_worse=_from(ladder.rates, new, ladder.before.new),
        gain=ladder.before.new - lowest,
    )


def _from(rates: tuple[float, ...], losses: list[float], bound: float) -> float | None:
    """Return the first rate from which on every loss is above a bound."""
    first = None
    for rate, loss in zip(reversed(rates), reversed(losses), strict=True):
        if loss <= bound:
            break
        first = rate
    return first


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
