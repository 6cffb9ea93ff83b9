"""What could bound an update: the candidates of the experiment `bounds`, and what stands beside."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.model import definite
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.step_clip import StepClip
from rksp.watch.moment import Moment

Rule = Literal["weights", "matrices", "least", "switch", "window", "start", "shrink"]
_FAST = 0.05  # nats by which the loss falls from one quarter of the steps so far to the next
_WINDOW = 10  # steps
_STARTING = 10  # steps that measure outputs before δ is set by them
_LEAST_WORTH = 0.2
_UNSHRUNK = 160  # steps with the whole δ


@dataclass(eq=False)
class Bound(StepClip):
    """Scales updates by one of the candidates' rules; every update is known from a copy.

    Args:
        rule: `weights`: ‖ΔW‖ ≤ δ ‖W‖ of matrices; other tensors follow their geometric mean.
            `matrices`: nothing follows. `least`: the smaller factor of that and of step clip's.
            `switch`: step clip while the loss falls fast, `weights` after. `window`: step clip, and
            the outputs move by at most δ √10 in ten steps. `start`: δ of every matrix makes the
            outputs of the first ten steps move by `delta`. `shrink`: δ √(160 / steps).
        least: The part of 1/√inputs that the RMS of a weight counts as at least.
    """

    name = "bound"
    rule: Rule = "weights"
    least: PositiveFloat = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._losses: list[float] = []
        self._is_fast = True
        self._anchors: deque[dict[nn.Parameter, Tensor]] = deque(maxlen=_WINDOW)
        self._ratios: dict[nn.Parameter, list[float]] = {}

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Sample inputs and outputs only for a rule that needs them now."""
        self._updates.forget()
        self._is_fast = self._is_fast and _falls_fast(self._losses)
        starts = self.rule == "start" and self._steps < _STARTING
        measures = self.rule in ("least", "window") or (self.rule == "switch" and self._is_fast)
        return super().arm(moment) if measures or starts else ()

    def before_update(self, moment: Moment) -> None:
        """Copy every weight."""
        self._losses.append(definite(moment.loss))
        self._updates.remember([p for p in self._named if p.grad is not None], measured=())

    def _bound(self, moment: Moment) -> float:
        shrunk = math.sqrt(_UNSHRUNK / max(_UNSHRUNK, self._steps)) if self.rule == "shrink" else 1
        return super()._bound(moment) * shrunk

    def _factors(self, moment: Moment, delta: float) -> dict[nn.Parameter, Tensor]:
        if self.rule == "switch" and self._is_fast:
            return super()._factors(moment, delta)
        if self.rule == "window":
            return self._in_window(moment, delta)
        copies = self._updates.copies
        shares = {p: _moved(p, copies[p], self.least) for p in copies}
        shares = {p: share for p, share in shares.items() if p in self._matrices}
        if self.rule == "start" and self._steps <= _STARTING:
            return self._at_start(moment, delta, shares)
        factors = {p: _factor(delta / self._worth(p), share) for p, share in shares.items()}
        if self.rule == "least":
            outer = super()._factors(moment, delta)
            return {p: _least(factor, factors.get(p)) for p, factor in outer.items()}
        if self.rule == "matrices":
            return factors | {p: torch.ones(1) for p in self._updates.copies if p not in factors}
        mean = torch.stack(list(factors.values())).log().mean().exp().view(1)
        return factors | {p: mean for p in self._updates.copies if p not in factors}

    def _at_start(
        self, moment: Moment, delta: float, shares: dict[nn.Parameter, float]
    ) -> dict[nn.Parameter, Tensor]:
        """Act as step clip, and note what a share of the weights is worth in shares of outputs."""
        found = super()._factors(moment, delta)
        outputs = self._outputs.of_parameters(self._outputs.shares())
        for p, share in shares.items():
            if p in outputs and share > 0:
                worth = float(outputs[p].nan_to_num().max()) / share
                self._ratios.setdefault(p, []).append(max(worth, _LEAST_WORTH))
        return found

    def _worth(self, parameter: nn.Parameter) -> float:
        return median(self._ratios.get(parameter, (1.0,)))

    def _in_window(self, moment: Moment, delta: float) -> dict[nn.Parameter, Tensor]:
        """Also bound what ten steps do to the outputs, at what the step's share of weights does."""
        factors = super()._factors(moment, delta)
        outputs = self._outputs.of_parameters(self._outputs.shares())
        then = self._anchors[0] if len(self._anchors) == _WINDOW else {}
        for p, start in then.items():
            step = float((p - self._updates.copies[p]).norm()) if p in self._updates.copies else 0.0
            if p in outputs and p in factors and step > 0:
                share = float(outputs[p].nan_to_num().max())
                whole = share * float((p - start).norm()) / step
                factors[p] = factors[p].clamp(max=_factor(delta * math.sqrt(_WINDOW), whole))
        self._anchors.append(dict(self._updates.copies))
        return factors


@dataclass(eq=False)
class StableAdamW(Intervention):
    """Divides every update of AdamW by max(1, RMS(g / √v)) (Wortsman et al., 2023, algorithm 2).

    v counts as at least ε². In the published form v holds no bias correction at step one, as here.
    """

    name = "stable_adamw"

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Keep the optimizer."""
        self._optimizer = optimizer

    @torch.no_grad()
    def before_update(self, moment: Moment) -> None:
        """Copy every weight."""
        self._copies = {p: p.clone() for p in moment.model.parameters() if p.grad is not None}

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        """Scale the updates."""
        for group in self._optimizer.param_groups:
            for p in (p for p in group["params"] if p in self._copies):
                state, beta2 = self._optimizer.state[p], group["betas"][1]
                square = state["exp_avg_sq"] / (1 - beta2 ** float(state["step"]))
                rms = (p.grad.square() / square.clamp(min=group["eps"] ** 2)).mean().sqrt()
                p.copy_(torch.lerp(self._copies[p], p, 1 / rms.clamp(min=1)))


@dataclass(eq=False)
class Lamb(StableAdamW):
    """Makes every matrix's update rate · ‖W‖ long (You et al., 2020), in the direction of AdamW's.

    The rate is `share` of the recipe's peak: a rate of Adam means nothing to LAMB.
    """

    name = "lamb"
    share: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        self._highest = 0.0

    @torch.no_grad()
    def after_update(self, moment: Moment) -> None:
        """Scale the updates."""
        rate = definite(moment.learning_rate)
        self._highest = max(self._highest, rate)
        for p, before in self._copies.items():
            if p.dim() > 1:
                share = _moved(p, before, 0.1)
                p.copy_(torch.lerp(before, p, self.share * rate / self._highest / max(share, 1e-9)))


def _falls_fast(losses: Sequence[float]) -> bool:
    quarter = len(losses) // 4
    if quarter < _STARTING:
        return True
    before, last = losses[-2 * quarter : -quarter], losses[-quarter:]
    return sum(before) / quarter - sum(last) / quarter > _FAST


@torch.no_grad()
def _moved(weight: Tensor, before: Tensor, least: float) -> float:
    """Return ‖ΔW‖ / ‖W‖, whose W counts as having an RMS of at least `least`/√inputs.

    The larger side counts as the inputs, whatever the layout.
    """
    least *= math.sqrt(weight.numel() / max(weight.shape[-2:]))
    return float((weight - before).norm()) / max(float(before.norm()), least)


def _factor(delta: float, share: float) -> Tensor:
    return torch.full((1,), min(1.0, delta / share) if share > 0 else 1.0)


def _least(one: Tensor, other: Tensor | None) -> Tensor:
    return one if other is None else torch.minimum(one, other)
