"""Earlier runs in the same log: what a run goes on with, and its siblings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rksp.watch.attach.lines import Began, Stepped
from rksp.watch.expected import Sibling

_MOST = 64 * 2**20  # bytes of a log that are read, its newest
_SIBLINGS = 8
_END = 10  # losses that the end of a run is a mean of
_SURE = 1.0  # nats above ln C, which no fresh weights have
TRAINED = 0.7  # of ln C: a first loss below is of weights that were trained


@dataclass(slots=True)
class Past:
    """A run that is over.

    Attributes:
        began: Its first line.
        losses: By step, in nats: the model's own where it is known, else what backward was on.
        seen: Targets up to each of these steps; steps where none are known.
        rate: The last learning rate.
        last: Its last step; None before one ended.
    """

    began: Began
    losses: list[float] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    rate: float | None = None
    last: Stepped | None = None

    @property
    def end(self) -> float | None:
        """The mean of its last losses; None if it has too few or one that is no number."""
        part = self.losses[-_END:]
        mean = sum(part) / len(part) if len(part) == _END else math.nan
        return mean if math.isfinite(mean) else None

    def is_like(self, run: Began) -> bool:
        """Tell whether it trained a model of the same class and size."""
        own = self.began
        return (own.model, own.parameters) == (run.model, run.parameters)

    def differs(
        self, loss: float, nothing: float, *, rates: Sequence[float], is_fresh: bool
    ) -> str:
        """Say what a run after it that begins at this loss lacks of it, should it not continue it.

        Fresh weights have a loss of `nothing`, and `rates` are the newest of the run after it.
        """
        reasons, rate = [], max(rates, default=0.0)
        end = nothing if self.end is None else self.end
        if self.rate and rate > 2.5 * self.rate:
            reasons.append(f"the learning rate is × {rate / self.rate:.3g} what it was at its end")
        if is_fresh:
            reasons.append("the optimizer's state was not loaded")
        if loss > nothing + _SURE:
            text = f"its data or labels are not those of the run before: at a loss of {loss:.4g} it"
            reasons.insert(0, f"{text} is sure of what is wrong (fresh weights have {nothing:.3g})")
        elif loss > TRAINED * nothing and loss > end + 0.25 * max(nothing - end, 0.0):
            reasons.insert(0, "its weights are not those that the run before ended with")
        return "; ".join(reasons)


def past_runs(log: Path) -> list[Past]:
    """Return the runs in a log of `rksp watch`, oldest first; none of a file that is no log."""
    found: list[Past] = []
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _MOST))
            lines = file.read().decode("utf-8", "replace").split("\n")[:-1]  # whole ones
    except OSError:
        return []
    for line in lines:
        if line.startswith('{"kind": "run"'):
            found.append(Past(Began.model_validate_json(line)))
        elif found and line.startswith('{"kind": "step"'):
            run, step = found[-1], Stepped.model_validate_json(line)
            loss = step.loss if step.own is None else step.own
            if loss is not None:
                run.losses.append(loss)
                targets = 1 if step.targets is None else step.targets
                run.seen.append((run.seen[-1] if run.seen else 0) + targets)
            run.rate = run.rate if step.rate is None else step.rate
            run.last = step
    return found


def siblings(runs: Sequence[Past], run: Began) -> list[Sibling]:
    """Return earlier runs of the same command with the same model, the newest ones."""
    same = [one for one in runs if one.is_like(run) and one.began.command == run.command]
    return [Sibling(one.seen, one.losses) for one in same if one.losses][-_SIBLINGS:]
