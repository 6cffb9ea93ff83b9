"""Hold the reaction of a model to its first update; the numbers need no torch."""

from __future__ import annotations

from dataclasses import dataclass
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
    """The reaction of a freshly initialized model to its first step.

    Attributes:
        loss: Loss of the unmoved model on the fresh batch, in nats.
        grad_norm: Euclidean norm of the gradient on the first batch.
        grad_rms: Root mean square of the gradient's entries.
        grad_max: Largest absolute entry of the gradient (against the range of fp16).
        update_rms: RMS of the first update per unit learning rate (1 for Adam and Lion).
        descent: −g·u, the first-order decrease of the loss per unit learning rate.
        critical_rate: Rate at which the fresh loss stops being lower than before the step; None if
            even the smallest step raises it or no step does. The idea is "critical sharpness"
            (arXiv 2601.16979), here on a batch that the gradient has not seen.
        output_slope: Relative change of the logits of both batches per unit rate,
            ‖f(θ+δ) − f(θ)‖ / ‖f(θ)‖ over the rate, at an update RMS of 10⁻⁴.
        overshoot: Change of the fresh loss, in nats, at ten times the critical rate.
        points: Every evaluation, sorted by rate.
        forward_passes: Cost in forward passes over both batches together (a backward counts two).
        reason: Why nothing could be measured, or None.
        drift: As `rksp.measure.drift` has it, at `DRIFT_RATE`; None if no weights were trained.
    """

    loss: float | None
    grad_norm: float | None
    grad_rms: float | None
    grad_max: float | None
    update_rms: float | None
    descent: float | None
    critical_rate: float | None
    output_slope: float | None
    overshoot: float | None
    points: tuple[ResponsePoint, ...]
    forward_passes: float
    reason: str | None = None
    drift: float | None = None


def unmeasured(reason: str, forward_passes: float) -> ResponseProfile:
    """Return a profile that holds only the reason."""
    fields: dict[str, Any] = dict.fromkeys(ResponseProfile.__dataclass_fields__)
    return ResponseProfile(
        **fields | {"points": (), "forward_passes": forward_passes, "reason": reason}
    )
