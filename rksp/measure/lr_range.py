"""Measure the micro tier: a few dozen steps at rising learning rates; the weights are restored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import nn

from rksp.batch import Batch
from rksp.measure.response import untouched
from rksp.objective import task_loss
from rksp.optimizers import make_optimizer
from rksp.recipe import Recipe

STEPS = 40
_DECADES = 5.0
_SMOOTHING = 3  # steps on either side


class RangeStatus(StrEnum):
    """Tells whether a range test gave a curve."""

    OK = "ok"
    NO_FINITE_LOSS = "no-finite-loss"  # the model fails before its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTest:
    """The result of forty steps at exponentially rising rates.

    Attributes:
        rates: The rates, ascending, `[steps taken]`.
        losses: The raw loss before each step, in nats, `[steps taken]`.
        smooth: Running mean of the finite losses over seven steps, `[finite losses]`.
        lowest_rate: Rate at which the smoothed loss was lowest; the first rate without a finite
            loss.
        fall: Decrease of the smoothed loss from its start to its minimum, in nats; zero without a
            finite loss.
        rise: Increase from its minimum to its end, in nats; infinite after a non-finite loss.
        status: Whether there is a curve.
    """

    rates: np.ndarray
    losses: np.ndarray
    smooth: np.ndarray
    lowest_rate: float
    fall: float
    rise: float
    status: RangeStatus = RangeStatus.OK

    def rate_of_rise(self, nats: float) -> float | None:
        """Return the rate at which the smoothed loss first rose `nats` above its minimum.

        A non-finite loss counts as an infinite rise. The result is None if the loss never rose that
        far.
        """
        if self.status is RangeStatus.NO_FINITE_LOSS:
            return float(self.rates[0])
        lowest = int(self.smooth.argmin())
        risen = np.flatnonzero(self.smooth[lowest:] > self.smooth[lowest] + nats)
        if len(risen):
            return float(self.rates[lowest + risen[0]])
        ended = ~np.isfinite(self.losses)
        return float(self.rates[ended][0]) if ended.any() else None


def range_test(
    model: nn.Module, batches: Sequence[Batch], recipe: Recipe, *, update_rms: float = 1.0
) -> RangeTest:
    """Train for up to `len(batches)` steps (40 by default) while the rate rises over five decades.

    The idea is Smith's (2017, "Cyclical learning rates", §3.3). Here the optimizer is the recipe's
    own, with its clipping, and the RMS of the first update ranges from 10⁻⁵ to 1. The test stops
    early if the loss is not finite or exceeds four times the first loss plus 4 nats. The model is
    left bitwise unchanged.

    Args:
        model: The model.
        batches: One batch per step.
        recipe: The recipe; its learning rate is ignored.
        update_rms: RMS of the first update per unit rate (`ResponseProfile.update_rms`).

    Returns:
        The curve and its summary.
    """
    steps = len(batches)
    first = 10**-_DECADES / update_rms
    rates = [first * 10 ** (_DECADES * step / (steps - 1)) for step in range(steps)]
    losses: list[float] = []
    params = [p for p in model.parameters() if p.requires_grad]
    with untouched(model, params):
        model.train()
        optimizer = make_optimizer(model, recipe.model_copy(update={"learning_rate": first}))
        for rate, batch in zip(rates, batches, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = task_loss(model, batch)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]) or losses[-1] > 4 * losses[0] + 4:
                break
            loss.backward()
            if recipe.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(params, recipe.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return summarize(np.array(rates[: len(losses)]), np.array(losses))


def summarize(rates: np.ndarray, losses: np.ndarray) -> RangeTest:
    """Summarize a range test from its rates and raw losses, `[steps taken]` each."""
    finite = np.isfinite(losses)
    if not finite.any():
        return RangeTest(
            rates=rates,
            losses=losses,
            smooth=losses[finite],
            lowest_rate=float(rates[0]),
            fall=0.0,
            rise=math.inf,
            status=RangeStatus.NO_FINITE_LOSS,
        )
    curve = losses[finite]
    smooth = np.array(
        [curve[max(0, i - _SMOOTHING) : i + _SMOOTHING + 1].mean() for i in range(len(curve))]
    )
    lowest = int(smooth.argmin())
    return RangeTest(
        rates=rates,
        losses=losses,
        smooth=smooth,
        lowest_rate=float(rates[lowest]),
        fall=float(smooth[0] - smooth[lowest]),
        rise=float(smooth[-1] - smooth[lowest]) if finite.all() else math.inf,
    )
