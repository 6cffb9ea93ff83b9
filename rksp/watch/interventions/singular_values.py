"""Interventions on the singular values of weights: MSign and spectral smoothing."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import NotCovered
from rksp.kernels.newton_schulz import polar_factor
from rksp.kernels.power_iteration import COLD_ITERATIONS, top_singular
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix, at_least_float
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm

_LARGEST_SVD = 1024  # smaller side up to which a decomposition is cheap beside 20 steps
_REACHED = 1 + 1e-4  # times the threshold, so that a lowered value is not lowered again


class _OnWeights(Intervention):
    """Acts on weights on the clock, on alarms, or both; `every` steps lie between two actions."""

    every: int
    on: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._matrices: list[Matrix] = []
        self._last = -math.inf

    @abstractmethod
    def act(self, moment: Moment) -> None:
        """Change the weights."""

    def after_update(self, moment: Moment) -> None:
        """Act if the clock says so."""
        if self.on != "alarm" and (moment.step + 1) % self.every == 0:
            self._last = moment.step
            self.act(moment)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        """Act on an alarm if it is enabled and the last action is long enough ago."""
        if self.on != "clock" and moment.step - self._last >= self.every:
            self._last = moment.step
            self.act(moment)


@dataclass(eq=False)
class MSign(_OnWeights):
    """Restores full stable rank: W ← ‖W‖_F · S / ‖S‖_F, S = UVᵀ of W = UΣVᵀ.

    Source: arXiv 2602.01734, after the optimizer's step, on weights and not on momenta, every 100
    steps. All singular values become ‖W‖_F/√r. With `strength` λ below one, W moves only part of
    the way to that target, to (1 − λ) W + λ · target, and is scaled back to its norm.

    Differences from the paper: where the smaller side exceeds 1,024, S comes from the Polar Express
    instead of an SVD (directions below 1e-4 of the largest stay partly suppressed); fused
    projections are split first, because a sign across Q|K|V would mix them; and it can act on
    alarms. Embeddings, heads, norms, routers, convolutions and Adam's moments are left unchanged.

    A run of a few hundred steps is over before an action every 100 steps can help it:
    `scope=all, every=20` saved more of rksp's short runs than the paper's defaults.

    Args:
        every: P; when it acts on alarms, the least number of steps between two actions.
        on: The clock, alarms, or both.
        scope: Projections of attention, matrices of feed-forward layers, or all of them.
        strength: λ.
        steps: Steps of the polar iteration of larger matrices; 8 reach rounding error at condition
            numbers up to 1e2, 10 at 1e3.
    """

    name = "msign"
    every: PositiveInt = 100
    on: Literal["clock", "alarm", "both"] = "clock"
    scope: Literal["attention", "mlp", "all"] = "attention"
    strength: Annotated[float, Field(gt=0, le=1)] = 1.0
    steps: PositiveInt = 10

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Find the projections of the scope.

        Raises:
            NotCovered: The model has no projection of a known layout in the scope.
        """
        anatomy = find_anatomy(model)
        parts = {"attention": anatomy.attention_matrices(), "mlp": anatomy.feed_forward}
        self._matrices = [m for part in parts if self.scope in (part, "all") for m in parts[part]]
        if not self._matrices:
            raise NotCovered(
                f"MSign with scope={self.scope!r} found no projection of a known layout; "
                "try scope=all or choose another intervention."
            )

    @torch.no_grad()
    def act(self, moment: Moment) -> None:
        """Replace the matrices of the scope."""
        for matrix in self._matrices:
            matrix.write(self.signed(at_least_float(matrix.read())))
        what, count = "replaced projections by their matrix sign", float(len(self._matrices))
        self.record(moment, what, moved_weights=True, matrices=count)

    def signed(self, weights: Tensor) -> Tensor:
        """Return matrices `[..., m, n]` moved towards their sign, at their own Frobenius norms."""
        largest = weights.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo().tiny)
        unit = weights / largest  # squares of extreme weights would leave the range of float32
        target = self._sign(unit)
        mixed = torch.lerp(unit / _norm(unit), target / _norm(target), self.strength)
        return mixed / _norm(mixed) * _norm(unit) * largest

    def _sign(self, unit: Tensor) -> Tensor:
        if min(unit.shape[-2:]) > _LARGEST_SVD or not bool(unit.isfinite().all()):
            return polar_factor(unit, self.steps)
        u, sigma, vh = torch.linalg.svd(unit, full_matrices=False)
        kept = sigma > torch.finfo(unit.dtype).eps * max(unit.shape[-2:]) * sigma[..., :1]
        return u * kept.unsqueeze(-2) @ vh


def _norm(weights: Tensor) -> Tensor:
    return weights.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo().tiny)


@dataclass(eq=False)
class SpectralSmoothing(_OnWeights):
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
    ratio: Annotated[float, Field(gt=1)] = 4.0
    every: PositiveInt = 100
    on: Literal["clock", "alarm"] = "clock"
    rounds: PositiveInt = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._states: dict[int, tuple[Tensor, ...]] = {}

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

    @torch.no_grad()
    def act(self, moment: Moment) -> None:
        """Lower the leading values of every matrix."""
        lowered, largest = 0, 0.0
        for index, matrix in enumerate(self._matrices):
            weight = matrix.read()
            weight = at_least_float(weight).clone()
            count, ratio = self._lower(weight, index)
            lowered, largest = lowered + count, max(largest, ratio)
            if count:
                matrix.write(weight)
        self.record(
            moment,
            "lowered leading singular values",
            moved_weights=lowered > 0,
            lowered=float(lowered),
            largest_ratio=largest,
        )

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
