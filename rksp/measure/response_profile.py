"""Hold a model's first gradient and its reaction to its first update, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

GRADIENT_NOT_FINITE = "the gradient is not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePoint:
    """The effect of moving the model along its first update by `rate` times that update.

    `fresh` is the change of the loss, in nats, on a batch that the gradient has not seen.
    """

    rate: float
    fresh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseProfile:
    """The first gradient of a model and, if it was measured, the reaction to its first step.

    Where only the gradient was measured, `loss`, `update_rms` and all that needs a step are None.

    Attributes:
        loss: Loss of the unmoved model on the fresh batch, in nats.
        grad_norm: Euclidean norm of the gradient on the first batch.
        grad_rms: Root mean square of the gradient's entries.
        grad_max: Largest absolute entry of the gradient (against the range of fp16).
        update_rms: RMS of the first update per unit learning rate (1 for Adam and Lion).
        critical_rate: Rate at which the fresh loss stops being lower than before the step; None if
            even the smallest step raises it or no step does. The idea is "critical sharpness"
            (arXiv 2601.16979), here on a batch that the gradient has not seen.
        output_slope: Relative change of the logits of both batches per unit rate,
            ‖f(θ+δ) − f(θ)‖ / ‖f(θ)‖ over the rate, at an update RMS of 10⁻⁴.
        overshoot: Change of the fresh loss, in nats, at ten times the critical rate.
        points: Every evaluation, sorted by rate.
        forward_passes: Cost in forward passes over both batches together (a backward counts two).
        reason: Why nothing could be measured, or None.
        drift: As `rksp.measure.response.measure_drift` has it, at `DRIFT_RATE`; None if no weights
            were trained.
    """

    loss: float | None
    grad_norm: float | None
    grad_rms: float | None
    grad_max: float | None
    update_rms: float | None
    critical_rate: float | None
    output_slope: float | None
    overshoot: float | None
    points: tuple[ResponsePoint, ...]
    forward_passes: float
    reason: str | None = None
    drift: float | None = None

    @property
    def has_step(self) -> bool:
        """Whether the reaction to a step was measured too."""
        return self.update_rms is not None


def profile_of_gradient(
    sizes: Sequence[tuple[float, float, int]], forward_passes: float
) -> ResponseProfile:
    """Return the profile of a gradient alone.

    Args:
        sizes: Sum of squares, largest absolute entry and number of entries of every part.
        forward_passes: What it cost.

    Returns:
        The profile; it holds only a reason if the gradient is zero or not finite.
    """
    norm = math.sqrt(sum(square for square, _, _ in sizes))
    if not math.isfinite(norm):
        return unmeasured(GRADIENT_NOT_FINITE, forward_passes)
    if norm == 0:
        return unmeasured("the gradient is zero", forward_passes)
    return replace(
        unmeasured(None, forward_passes),
        grad_norm=norm,
        grad_rms=norm / math.sqrt(sum(count for _, _, count in sizes)),
        grad_max=max(largest for _, largest, _ in sizes),
    )


def unmeasured(reason: str | None, forward_passes: float) -> ResponseProfile:
    """Return a profile that holds only the reason."""
    fields: dict[str, Any] = dict.fromkeys(ResponseProfile.__dataclass_fields__)
    return ResponseProfile(
        **fields | {"points": (), "forward_passes": forward_passes, "reason": reason}
    )
