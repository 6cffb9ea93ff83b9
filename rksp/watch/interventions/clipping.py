"""Gradient clipping: at a fixed norm, at an adaptive one (ZClip), and tensor by tensor (AdaGC)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rksp.watch.groups import norms_of, sums_of_squares
from rksp.watch.interventions.base import Intervention
from rksp.watch.moment import Moment


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return each gradient's Euclidean norm over all its shards, `[tensors]`, at least float32."""
    if any(isinstance(gradient, DTensor) for gradient in gradients):
        return sums_of_squares([[gradient] for gradient in gradients]).sqrt()
    return torch.stack(list(norms_of(gradients)))


def _scale_to(gradients: Sequence[Tensor], norm: float, limit: float) -> bool:
    if not norm > limit:
        return False
    torch._foreach_mul_(list(gradients), limit / norm)
    return True


class _Together(Intervention):
    """Scales all gradients together, at a limit that may depend on their norm."""

    def before_update(self, moment: Moment) -> None:
        gradients = list(_gradients(moment.model).values())
        norm = float(_norms(gradients).norm())
        if not math.isfinite(norm):
            return
        limit = self.limit(norm)
        if _scale_to(gradients, norm, limit):
            self.record(moment, "scaled the gradient down", norm=norm, limit=limit)

    @abstractmethod
    def limit(self, norm: float) -> float:
        """Return the limit for a gradient of this norm."""


@dataclass(eq=False)
class Clip(_Together):
    """Scales all gradients together to a norm of at most `norm` (Pascanu et al., 2013)."""

    name = "clip"
    norm: PositiveFloat = 1.0

    def limit(self, norm: float) -> float:
        return self.norm


@dataclass(eq=False)
class ZClip(_Together):
    """Clips when the gradient norm is an outlier of its own running mean and variance.

    Source: arXiv 2504.02507, reciprocal mode. With z = (g − µ)/(σ + 1e-6): if z exceeds the
    threshold, the norm becomes µ + threshold² σ / z. µ and σ² are exponential averages of the
    clipped norm, with σ² around the new µ; they start from the first `warmup` norms.

    Args:
        threshold: The z above which a norm is an outlier.
        alpha: Decay of the averages.
        warmup: Steps that only collect norms.
        norm: A fixed limit that also holds, from the first step on.
    """

    name = "zclip"
    threshold: PositiveFloat = 2.5
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.97
    warmup: Annotated[int, Field(ge=2)] = 25
    norm: float | None = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._first: list[float] = []
        self._mean = self._variance = 0.0

    def limit(self, norm: float) -> float:
        return min(self._adaptive(norm), math.inf if self.norm is None else self.norm)

    def _adaptive(self, norm: float) -> float:
        if len(self._first) < self.warmup:
            self._first.append(norm)
            count = len(self._first)
            self._mean = math.fsum(self._first) / count
            self._variance = math.fsum((g - self._mean) ** 2 for g in self._first) / count
            return math.inf
        deviation = math.sqrt(self._variance)
        z = (norm - self._mean) / (deviation + 1e-6)
        limit = math.inf
        if z > self.threshold:
            limit = self._mean + self.threshold**2 * deviation / z
        kept = min(norm, limit)
        self._mean = self.alpha * self._mean + (1 - self.alpha) * kept
        self._variance = self.alpha * self._variance + (1 - self.alpha) * (kept - self._mean) ** 2
        return limit


@dataclass(eq=False)
class AdaGC(Intervention):
    """Clips every tensor's gradient against a running mean of its own norm.

    Source: arXiv 2502.11034. For the first `warmup` steps all gradients are clipped together to
    `norm`, and each tensor's γ is the smallest norm seen. Then h = min(1, λ γ / ‖g‖) scales the
    tensor, and γ ← β γ + (1 − β) ‖h g‖. A tensor whose gradient was zero so far starts at its first
    other one, a case that the paper leaves out.

    Args:
        ratio: λ.
        beta: β.
        warmup: Steps in which all gradients are clipped together.
        norm: The limit in these steps.
    """

    name = "adagc"
    ratio: PositiveFloat = 1.05
    beta: Annotated[float, Field(ge=0, lt=1)] = 0.98
    warmup: NonNegativeInt = 100
    norm: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._usual: dict[str, float] = {}

    def before_update(self, moment: Moment) -> None:
        """Clip all gradients together during warm-up, and each tensor's gradient afterwards."""
        gradients = _gradients(moment.model)
        norms = dict(zip(gradients, _norms(list(gradients.values())).tolist(), strict=True))
        if not all(map(math.isfinite, norms.values())):
            return
        if moment.step < self.warmup:
            clipped = self._together(list(gradients.values()), norms)
        else:
            clipped = self._one_by_one(gradients, norms)
        if clipped:
            norm = math.hypot(*norms.values())
            self.record(moment, "scaled gradients down", norm=norm, tensors=float(clipped))

    def _together(self, gradients: list[Tensor], norms: dict[str, float]) -> int:
        total = math.hypot(*norms.values())
        factor = self.norm / total if _scale_to(gradients, total, self.norm) else 1.0
        for name, norm in norms.items():
            self._usual[name] = min(self._usual.get(name, math.inf), factor * norm)
        return len(gradients) if factor < 1 else 0

    def _one_by_one(self, gradients: dict[str, Tensor], norms: dict[str, float]) -> int:
        clipped = 0
        for name, norm in norms.items():
            usual = self._usual.get(name) or norm  # zero would freeze the tensor for good
            limit = self.ratio * usual
            clipped += _scale_to([gradients[name]], norm, limit)
            self._usual[name] = self.beta * usual + (1 - self.beta) * min(norm, limit)
        return clipped
