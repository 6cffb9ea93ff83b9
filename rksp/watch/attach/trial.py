"""Other steps, tried on what is kept of a run, and judged on batches that they did not see."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rksp.watch.attach.kept import Kept, Pass
from rksp.watch.groups import local

STEPS, _ASIDE = 36, 3  # of a trial; newest passes that it does not train on
_LEAST = 6  # passes without which there is no trial
_SHORTER, _LONGER, _ITSELF = (1 / 4, 1 / 16, 1 / 64), (8.0, 64.0, 512.0, 4096.0), (1.0, 8.0)
_NAMES = dict(zip(_SHORTER, ("a quarter of", "a sixteenth of", "1/64 of"), strict=True))
_BETTER = 0.08  # of the loss, on batches that the trial did not train on
_BY_HEART = 0.25  # of the loss, on those that it did


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What steps of one length come to.

    Attributes:
        length: Theirs, in words.
        now, then: Loss of the run's weights and of theirs, of batches that they did not see.
        before, after: Loss before and after them, of those that they did see.
    """

    length: str
    now: float
    then: float
    before: float
    after: float

    @property
    def is_better(self) -> bool:
        """Whether they learn something that holds for batches that they did not see."""
        return self.now - self.then > _BETTER * abs(self.now)

    @property
    def is_by_heart(self) -> bool:
        """Whether they learn what they see, and nothing that holds for others."""
        return self.before - self.after > _BY_HEART * abs(self.before) and not self.is_better


class Trials:
    """Tries other steps with the model, which is as it was after each trial, to the bit.

    A step goes against the gradient of one pass, as far in every tensor.

    Args:
        kept: What is kept of the run.
        called: What the script calls.
        seconds: For all trials together; one that would take longer is not begun.
    """

    def __init__(self, kept: Kept, called: nn.Module, seconds: float) -> None:
        self.kept, self.called = kept, called
        self._end = time.monotonic() + seconds
        passes = [one for step in kept.steps for one in step.passes if one.is_whole]
        few = len(passes) < _LEAST
        self._seen, self._unseen = ([], []) if few else (passes[:-_ASIDE], passes[-_ASIDE:])

    def shorter(self, length: float) -> Trial | None:
        """Begin again from the first weights, in shorter steps than the first ones were."""
        if not self.kept.first:
            return None
        found = [self._tried(self._seen, length * factor, again=True) for factor in _SHORTER]
        named = [
            Trial(length=f"{_NAMES[factor]} the length", **one)
            for factor, one in zip(_SHORTER, found, strict=True)
            if one is not None
        ]
        best = min(named, key=lambda one: one.then, default=None)
        return best if best is not None and best.is_better else None

    def longer(self, length: float) -> Trial | None:
        """Go on in longer steps than the last ones."""
        for factor in _LONGER:
            one = self._tried(self._seen, length * factor)
            if one is None:
                return None
            found = Trial(length=f"{factor:g} times the length", **one)
            if found.is_better:
                return found
        return None

    def by_heart(self, length: float) -> Trial | None:
        """Learn one pass alone."""
        for factor in _ITSELF:
            one = self._tried(self._seen[:1], length * factor)
            if one is not None and (found := Trial(length="", **one)).is_by_heart:
                return found
        return None

    def _tried(
        self, seen: Sequence[Pass], length: float, *, again: bool = False
    ) -> dict[str, float] | None:
        """Return the numbers of a `Trial`; None where the loss is unknown or time is short."""
        parameters = self.kept.parameters
        with self.kept.repeating(), self.kept.held():
            now = self._loss(self._unseen)
            if again:
                self.kept.begin_again()
            before = self._loss(seen)
            for number in range(STEPS):
                started = time.monotonic()
                with torch.enable_grad():
                    loss = seen[number % len(seen)].run(self.called)[0] if seen else None
                    if loss is None or not loss.requires_grad or not bool(loss.isfinite()):
                        return None
                    grads = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
                self._step(grads, length)
                left = (STEPS - number) * (time.monotonic() - started)
                if not number and started + left > self._end:
                    return None
            found = {"now": now, "then": self._loss(self._unseen), "before": before}
            found["after"] = self._loss(seen)
        return found if all(map(math.isfinite, found.values())) else None

    @torch.no_grad()
    def _step(self, grads: Sequence[torch.Tensor | None], length: float) -> None:
        for p, grad in zip(self.kept.parameters.values(), grads, strict=True):
            if grad is None or not bool((own := local(grad).float()).any()):
                continue
            size = own.square().mean().sqrt()
            if bool(size.isfinite()):
                local(p).sub_((own * (length / size)).to(p.dtype))

    @torch.no_grad()
    def _loss(self, passes: Sequence[Pass]) -> float:
        found = [one.run(self.called)[0] for one in passes]
        known = [float(loss) for loss in found if loss is not None]
        return statistics.fmean(known) if known else math.nan
