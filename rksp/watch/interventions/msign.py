"""MSign: replace projections by their matrix sign, at unchanged Frobenius norm."""

from __future__ import annotations

import math
import time
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import InputError, NotCovered
from rksp.kernels.newton_schulz import polar_factor
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Alarm

Scope = Literal["attention", "mlp", "all"]
On = Literal["clock", "alarm", "both"]
_LARGEST_SVD = 1024  # smaller side up to which a decomposition is cheap beside 20 steps


class MSign(Intervention):
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

    def __init__(
        self,
        every: int = 100,
        on: On = "clock",
        scope: Scope = "attention",
        strength: float = 1.0,
        steps: int = 10,
    ) -> None:
        super().__init__()
        if on not in ("clock", "alarm", "both") or scope not in ("attention", "mlp", "all"):
            raise InputError(
                "MSign needs on=clock, alarm or both and scope=attention, mlp or all, got "
                f"on={on!r}, scope={scope!r}."
            )
        if every < 1 or steps < 1 or not 0 < strength <= 1:
            raise InputError(
                "MSign needs every >= 1, steps >= 1 and 0 < strength <= 1, got "
                f"every={every}, steps={steps}, strength={strength}."
            )
        self.every, self.on, self.scope = every, on, scope
        self.strength, self.steps = strength, steps
        self._matrices: list[Matrix] = []
        self._last = -math.inf

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Find the projections of the scope.

        Raises:
            NotCovered: The model has no projection of a known layout in the scope.
        """
        anatomy = find_anatomy(model)
        found: list[Matrix] = []
        if self.scope != "mlp":
            found += anatomy.attention_matrices()
        if self.scope != "attention":
            found += anatomy.feed_forward
        if not found:
            raise NotCovered(
                f"MSign with scope={self.scope!r} found no projection of a known layout; "
                "try scope=all or choose another intervention."
            )
        self._matrices = found

    def after_update(self, moment: Moment) -> None:
        """Act if the clock says so."""
        if self.on != "alarm" and (moment.step + 1) % self.every == 0:
            self._act(moment)

    def on_alarm(self, alarm: Alarm, moment: Moment) -> None:
        """Act on an alarm if it is enabled and the last action is long enough ago."""
        if self.on != "clock" and moment.step - self._last >= self.every:
            self._act(moment)

    @torch.no_grad()
    def _act(self, moment: Moment) -> None:
        start = time.perf_counter()
        self._last = moment.step
        for matrix in self._matrices:
            weight = matrix.read()
            wide = weight if weight.dtype == torch.float64 else weight.float()
            matrix.write(self.signed(wide))
        record(
            self,
            moment,
            "replaced projections by their matrix sign",
            since=start,
            moved_weights=True,
            matrices=float(len(self._matrices)),
        )

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
