"""How a model reacts to the learning rate: a few forward passes along its first update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rksp.batch import Batch
from rksp.objective import run_pass, task_loss
from rksp.optimizers import make_optimizer
from rksp.recipe import Recipe

_PROBE_RATE = 1e-3  # of the step that reveals the update direction; the direction is per unit rate
_LOWEST, _HIGHEST = -6.0, 0.5  # decades of RMS update searched for the critical rate
_BISECTIONS = 6  # to 6.5 / 2^6 = 0.1 decades
_BEYOND = (3.0, 10.0)  # multiples of the critical rate looked at afterwards
GRADIENT_NOT_FINITE = "the gradient is not finite"
_SMALL = 1e-4  # RMS update of the step that shows the linear response


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePoint:
    """The model moved along its first update by `rate` times the update per unit rate.

    `same` and `fresh` are changes of the loss in nats on the batch that gave the gradient and on
    one it has not seen; `output` is ‖f(θ+δ) − f(θ)‖ / ‖f(θ)‖ over the logits of both.
    """

    rate: float
    same: float
    fresh: float
    output: float


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
        critical_rate: Rate at which the fresh loss stops being lower than before the step (the
            idea of "critical sharpness", arXiv 2601.16979, on a batch the gradient has not
            seen); None if even the smallest step raises it or no step does.
        output_slope: Relative change of the output per unit rate, at an update RMS of 10⁻⁴.
        overshoot: Change of the fresh loss, in nats, at ten times the critical rate.
        points: Every evaluation, by rate.
        forward_passes: Cost in forward passes over both batches together (a backward counts two).
        reason: Why nothing could be measured, or None.
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


def measure_response(
    model: nn.Module, same: Batch, fresh: Batch, recipe: Recipe
) -> ResponseProfile:
    """Moves a model along the first update of a recipe and back, and watches loss and output.

    The update is what the recipe's optimizer, with its epsilon, clipping and weight decay, would
    do first, per unit of learning rate; its algebra is linear in the rate, so one profile serves
    every learning rate of a sweep. The model is left bitwise as it was.

    Args:
        model: Freshly initialized; any mode, restored afterwards.
        same: The batch of the gradient.
        fresh: An equally large batch that the gradient has not seen.
        recipe: Its learning rate is not looked at.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    with untouched(model, params) as start:
        model.eval()  # no dropout: two evaluations must differ by the step alone
        task_loss(model, same).backward()
        present = [p for p in params if p.grad is not None]
        grads = [p.grad.detach().clone() for p in present]
        count = sum(g.numel() for g in grads)
        norm = float(torch.stack(torch._foreach_norm(grads)).norm())
        if not math.isfinite(norm):
            return _unmeasured(GRADIENT_NOT_FINITE, 1.5)
        if norm == 0:
            return _unmeasured("the gradient is zero", 1.5)
        grad_max = max(float(g.abs().max()) for g in grads)
        _take_first_step(model, recipe, norm, present)
        origin = [start[id(p)] for p in present]
        direction = [(p.detach() - p0) / _PROBE_RATE for p, p0 in zip(present, origin, strict=True)]
        update_rms = float(torch.stack(torch._foreach_norm(direction)).norm()) / math.sqrt(count)
        descent = -sum(float((g * u).sum()) for g, u in zip(grads, direction, strict=True))
        del grads

        def at(rate: float) -> tuple[float, float, Tensor | None]:
            with torch.no_grad():
                for p, p0, u in zip(present, origin, direction, strict=True):
                    torch.add(p0, u, alpha=rate, out=p.data)
                one, other = run_pass(model, same), run_pass(model, fresh)
                return float(one.loss), float(other.loss), _joined(one.output, other.output)

        base_same, base_fresh, output = at(0.0)
        scale = 1.0 if output is None else float(output.norm()) or 1.0
        points: dict[float, ResponsePoint] = {}

        def look(rate: float) -> ResponsePoint:
            if rate not in points:
                loss_same, loss_fresh, moved = at(rate)
                points[rate] = ResponsePoint(
                    rate=rate,
                    same=loss_same - base_same,
                    fresh=loss_fresh - base_fresh,
                    output=math.nan if moved is None else float((moved - output).norm()) / scale,
                )
            return points[rate]

        small = look(_SMALL / update_rms)
        critical = _critical_rate(look, update_rms)
        overshoot = None
        if critical is not None:
            overshoot = [look(critical * factor).fresh for factor in _BEYOND][-1]
    ordered = tuple(points[rate] for rate in sorted(points))
    return ResponseProfile(
        loss=base_fresh,
        grad_norm=norm,
        grad_rms=norm / math.sqrt(count),
        grad_max=grad_max,
        update_rms=update_rms,
        descent=descent,
        critical_rate=critical,
        output_slope=None if output is None else small.output / small.rate,
        overshoot=overshoot,
        points=ordered,
        forward_passes=1.5 + 1 + len(points),  # half the data forward and backward, then all of it
    )


def _joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return both outputs as one vector; None where a model shows none."""
    if one is None or other is None:
        return None
    return torch.cat([one.flatten().float(), other.flatten().float()])


def _take_first_step(
    model: nn.Module, recipe: Recipe, norm: float, params: list[nn.Parameter]
) -> None:
    """Takes the recipe's first step in place, at the probing rate."""
    if recipe.max_grad_norm is not None and norm > recipe.max_grad_norm:
        torch._foreach_mul_([p.grad for p in params], recipe.max_grad_norm / norm)
    optimizer = make_optimizer(model, recipe.model_copy(update={"learning_rate": _PROBE_RATE}))
    optimizer.step()


def _critical_rate(look, update_rms: float) -> float | None:
    """Bisects the logarithm of the rate on the sign of the fresh loss's change."""
    low, high = _LOWEST, _HIGHEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        change = look(10**middle / update_rms).fresh
        # Not "<= 0": a loss that is no longer a number has certainly stopped falling.
        low, high = (middle, high) if change < 0 else (low, middle)
    if low == _LOWEST or high == _HIGHEST:
        return None
    return 10 ** ((low + high) / 2) / update_rms


def _unmeasured(reason: str, forward_passes: float) -> ResponseProfile:
    fields = dict.fromkeys(ResponseProfile.__dataclass_fields__)
    return ResponseProfile(
        **fields | {"points": (), "forward_passes": forward_passes, "reason": reason}
    )


@contextmanager
def untouched(model: nn.Module, params: list[nn.Parameter]) -> Iterator[dict[int, Tensor]]:
    """Gives the weights by identity, and afterwards restores weights, buffers, modes, no grads."""
    weights = {id(p): p.detach().clone() for p in params}
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield weights
    finally:
        with torch.no_grad():
            for p in params:
                p.copy_(weights[id(p)])
                p.grad = None
            for buffer, value in buffers:
                buffer.copy_(value)
        for module, mode in modes:
            module.training = mode
