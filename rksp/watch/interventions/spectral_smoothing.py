"""Spectral smoothing: lower the singular values that stand out."""

from __future__ import annotations

import math
import time
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError, NotCovered
from rksp.kernels.power_iteration import COLD_ITERATIONS, top_singular
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm

On = Literal["clock", "alarm"]
_REACHED = 1 + 1e-4  # times the threshold, so that a lowered value is not lowered again


class SpectralSmoothing(Intervention):
    """Lowers the leading singular value of matrices in which it stands out.

    It is rksp's own, the simplest form of smoothing a singular spectrum. With τ = `ratio` times the
    root mean square of all singular values, computed once per action, every leading value above τ
    is lowered to τ, at most `rounds` of them: W ← W − (σ₁ − τ) u vᵀ. The rest of the matrix stays.
    Its Frobenius norm falls, so τ is lower the next time.

    It acts on the matrices of the blocks, with fused projections split. It needs no decomposition:
    the triplets come from a warm-started power iteration.

    Args:
        ratio: Ratio of σ₁ to the root mean square; it is 2 for square Gaussian matrices.
        every: Steps between two actions on the clock, and the least between two on alarms.
        on: `clock` or `alarm`.
        rounds: Number of leading values tested each time.
    """

    name = "spectral_smoothing"

    def __init__(
        self, ratio: float = 4.0, every: int = 100, on: On = "clock", rounds: int = 2
    ) -> None:
        super().__init__()
        if not ratio > 1 or every < 1 or rounds < 1 or on not in ("clock", "alarm"):
            raise InputError(
                "Spectral smoothing needs ratio > 1, every >= 1, rounds >= 1 and on=clock or "
                f"on=alarm, got ratio={ratio}, every={every}, rounds={rounds}, on={on!r}."
            )
        self.ratio, self.every, self.on, self.rounds = ratio, every, on, rounds
        self._matrices: list[Matrix] = []
        self._states: dict[int, tuple[Tensor, ...]] = {}
        self._last = -math.inf

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Find the matrices of the blocks.

        Raises:
            NotCovered: The model has no matrices in a list of blocks.
        """
        anatomy = find_anatomy(model)
        self._matrices = [*anatomy.attention_matrices(), *anatomy.feed_forward]
        if not self._matrices:
            raise NotCovered(
                "Spectral smoothing needs matrices in a list of blocks, and this model has none; "
                "choose another intervention."
            )

    def after_update(self, moment: Moment) -> None:
        """Act if the clock says so."""
        if self.on == "clock" and (moment.step + 1) % self.every == 0:
            self._smooth(moment)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        """Act on an alarm if it is enabled and the last action is long enough ago."""
        if self.on == "alarm" and moment.step - self._last >= self.every:
            self._smooth(moment)

    @torch.no_grad()
    def _smooth(self, moment: Moment) -> None:
        start = time.perf_counter()
        self._last = moment.step
        lowered, largest = 0, 0.0
        for index, matrix in enumerate(self._matrices):
            weight = matrix.read()
            wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
            weight = weight.to(wide, copy=True)
            count, ratio = self._lower(weight, index)
            lowered, largest = lowered + count, max(largest, ratio)
            if count:
                matrix.write(weight)
        what = "lowered leading singular values"
        detail = {"lowered": float(lowered), "largest_ratio": largest}
        record(self, moment, what, since=start, moved_weights=lowered > 0, **detail)

    def _lower(self, weight: Tensor, index: int) -> tuple[int, float]:
        """Lower leading values in place.

        Returns:
            The number of lowered values, and σ₁ over the root mean square before.
        """
        typical = float(weight.norm()) / math.sqrt(min(weight.shape))
        threshold, largest = self.ratio * typical, 0.0
        for number in range(self.rounds):
            state = self._states.get(index) if number == 0 else None
            found = top_singular([weight], state, iterations=COLD_ITERATIONS)
            if number == 0:
                self._states[index] = found.state
            sigma = float(found.sigma[0])
            if not bool(found.is_finite[0]) or typical == 0:
                return number, largest
            largest = max(largest, sigma / typical)
            if sigma <= threshold * _REACHED:
                return number, largest
            weight -= (sigma - threshold) * torch.outer(found.u[0], found.v[0]).to(weight)
        return self.rounds, largest
