"""Companions that take turns in one run, with each step timed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import NotCovered
from rksp.watch.moment import Moment
from rksp.watch.training.loop import Beside


class Rotation(Beside):
    """Gives every step to the next companion in turn, so that a slow minute slows all equally.

    Attributes:
        companions: The companions in order.
        missing: Index of a companion that finds nothing in this model → why; it gets no turn.
        seconds: Processor times of the steps of each companion. The first time of each includes its
            warm-up.
    """

    def __init__(self, companions: Sequence[Beside]) -> None:
        super().__init__()
        self.companions = tuple(companions)
        self.missing: dict[int, str] = {}
        self.seconds: list[list[float]] = [[] for _ in self.companions]
        self._turns: list[int] = []
        self._turn = 0
        self._started = 0.0

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Bind every companion; leave out those that find nothing in this model."""
        for index, companion in enumerate(self.companions):
            try:
                companion.bind(model, optimizer)
            except NotCovered as error:
                self.missing[index] = str(error)
            else:
                self._turns.append(index)

    def begin(self, moment: Moment) -> None:
        """Start the timer and the step of the next companion."""
        self._turn = self._turns[moment.step % len(self._turns)]
        self._started = time.process_time()
        self.companions[self._turn].begin(moment)

    def penalty(self, moment: Moment) -> Tensor | None:
        """Return the penalty of the current companion."""
        return self.companions[self._turn].penalty(moment)

    def after_backward(self, moment: Moment) -> None:
        """Call the current companion."""
        self.companions[self._turn].after_backward(moment)

    def before_update(self, moment: Moment) -> bool:
        """Call the current companion."""
        return self.companions[self._turn].before_update(moment)

    def after_update(self, moment: Moment) -> None:
        """Call the current companion and record the step's time."""
        self.companions[self._turn].after_update(moment)
        self.seconds[self._turn].append(time.process_time() - self._started)
