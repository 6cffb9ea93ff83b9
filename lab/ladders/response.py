"""Measure how a model reacts to steps along its first update, and its drift: columns of ladders.

No model of rksp reads them: with kinds of blocks left out they add nothing to P(failed)
(`lab/experiments/spectrum.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional as F

from rksp.datasets.batch import Batch, run_pass
from rksp.documents.shown import profile_of_gradient
from rksp.ground.allocator import return_freed_memory
from rksp.ground.model import definite
from rksp.measure.gradient import without_gradients
from rksp.models.as_found import evaluating
from rksp.models.streaming.gradients import size_of
from rksp.models.streaming.weights import as_real, square_sum
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer


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

    What was not measured is None: all that needs a step where only the gradient was measured.

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
        reason: Why nothing could be measured, or None.
    """

    loss: float | None = None
    grad_norm: float | None = None
    grad_rms: float | None = None
    grad_max: float | None = None
    update_rms: float | None = None
    critical_rate: float | None = None
    output_slope: float | None = None
    overshoot: float | None = None
    points: tuple[ResponsePoint, ...] = ()
    reason: str | None = None


_LOWEST, _HIGHEST = -6.0, 0.5  # decades of RMS update searched for the critical rate
_BISECTIONS = 6  # to 6.5 / 2^6 = 0.1 decades
_BEYOND = (3.0, 10.0)  # multiples of the critical rate evaluated afterwards
_SMALL = 1e-4  # RMS update of the step for the linear response
PROBE_RATE = 1e-3  # rate of the step that gives the direction, which is then divided by it


def measure_response(
    model: nn.Module, same: Batch, fresh: Batch, recipe: Recipe
) -> ResponseProfile:
    """Move a model along the first update of a recipe and back, and measure loss and output.

    The update is the one that the recipe's optimizer would make first, per unit of learning rate,
    with its epsilon, clipping and weight decay. Its algebra is linear in the rate, so one profile
    serves every learning rate of a sweep. The model is left bitwise unchanged. Memory holds three
    copies of the weights: the model's own, the update, and the moved weights.

    Args:
        model: Freshly initialized, in any mode; the mode is restored afterwards.
        same: The batch of the gradient.
        fresh: A batch that the gradient has not seen.
        recipe: The recipe; its learning rate is ignored.

    Returns:
        The profile; it holds only a reason if the gradient is zero or not finite.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model), without_gradients(params):
        first = run_pass(model, same)
        backward(first.total)
        before = [_kept(first.output)]
        del first
        present = [p for p in params if p.grad is not None]
        first_gradient = profile_of_gradient([size_of(definite(p.grad)) for p in present])
        shown = asdict(first_gradient)
        if first_gradient.reason is not None:
            return ResponseProfile(**shown)
        norm, count = definite(first_gradient.grad_norm), sum(p.numel() for p in present)
        direction = first_direction(model, recipe, norm, present)
        update_rms = math.sqrt(sum(map(square_sum, direction)) / count)
        return_freed_memory()  # moved weights do not fit into the holes of the backward pass
        with torch.no_grad():
            other = run_pass(model, fresh)
        base, before = float(other.loss), [*before, _kept(other.output)]
        del other
        size = _norm(before) or 1.0
        slopes: list[float] = []  # of the first point, which is the smallest step

        @torch.no_grad()
        def look(rate: float) -> ResponsePoint:
            steer(rate)
            moved = run_pass(model, fresh)
            loss = float(moved.loss)
            if not slopes:  # one output at a time, in place of what it was before
                changes = [_change(before.pop(), moved.output)]
                del moved
                changes.append(_change(before.pop(), run_pass(model, same).output))
                slopes.append(_norm(changes) / size / rate)
            return ResponsePoint(rate=rate, fresh=loss - base)

        with moving(present, direction) as steer:
            found = search(look, update_rms)
    return ResponseProfile(
        **shown,
        loss=base,
        update_rms=update_rms,
        output_slope=None if math.isnan(slopes[0]) else slopes[0],
        **found,
    )


def _kept(output: Tensor | None) -> Tensor | None:
    """Return a float32 copy of what a model shows; later passes may write over the original."""
    return None if output is None else output.detach().to(torch.float32, copy=True)


def _change(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    return None if after is None or before is None else before.sub_(after)


def _norm(tensors: Iterable[Tensor | None]) -> float:
    """Return the Euclidean norm of all entries together; NaN where a model shows none."""
    squares = (math.nan if part is None else float(part.norm()) ** 2 for part in tensors)
    return math.sqrt(sum(squares))


@torch.no_grad()
def first_direction(
    model: nn.Module, recipe: Recipe, norm: float, params: list[nn.Parameter]
) -> list[Tensor]:
    """Compute the recipe's first update per unit rate, in place of the gradients.

    Args:
        model: The model.
        recipe: The recipe; its learning rate is ignored.
        norm: Norm of the gradient before clipping.
        params: The parameters with a gradient, which is removed.

    Returns:
        The update by parameter.
    """
    optimizer = make_optimizer(model, recipe.model_copy(update={"learning_rate": PROBE_RATE}))
    groups = {
        id(parameter): (type(part), group)
        for part in getattr(optimizer, "parts", (optimizer,))
        for group in part.param_groups
        for parameter in group["params"]
    }
    limit = recipe.max_grad_norm
    clip = limit / norm if limit is not None and norm > limit else 1.0
    direction = []
    for p in params:
        gradient, p.grad = definite(p.grad), None
        kind, options = groups[id(p)]
        clipped, weight = as_real(gradient) * clip, as_real(p.detach())
        direction.append(_step(kind, options, weight, clipped).view_as(as_real(gradient)))
    return direction


@contextmanager
def moving(
    params: list[nn.Parameter], direction: list[Tensor]
) -> Iterator[Callable[[float], None]]:
    """Yield a function that moves parameters along a direction; restore their values at the end."""
    own = [p.data for p in params]
    moved = [torch.empty_like(value) for value in own]

    def steer(rate: float) -> None:
        for value, update, out in zip(own, direction, moved, strict=True):
            torch.add(value, update, alpha=rate, out=out)

    try:
        for p, out in zip(params, moved, strict=True):
            p.data = out
        yield steer
    finally:
        for p, value in zip(params, own, strict=True):
            p.data = value


def search(look: Callable[[float], ResponsePoint], update_rms: float) -> dict[str, Any]:
    """Bisect the logarithm of the rate on the sign of the change of the fresh loss.

    Args:
        look: Returns the point at a rate; the first one asked for is the smallest step.
        update_rms: RMS of the update per unit rate.

    Returns:
        `critical_rate`, `overshoot` and `points`, as in `ResponseProfile`.
    """
    low, high = _LOWEST, _HIGHEST
    points = [look(_SMALL / update_rms)]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        points.append(look(10**middle / update_rms))
        # "< 0" and not "<= 0": a loss that became NaN has certainly stopped falling.
        low, high = (middle, high) if points[-1].fresh < 0 else (low, middle)
    critical = overshoot = None
    if low != _LOWEST and high != _HIGHEST:
        critical = 10 ** ((low + high) / 2) / update_rms
        points += [look(critical * factor) for factor in _BEYOND]
        overshoot = points[-1].fresh
    ordered = tuple(sorted({p.rate: p for p in points}.values(), key=lambda p: p.rate))
    return {"points": ordered, "critical_rate": critical, "overshoot": overshoot}


def measure_drift(
    model: nn.Module,
    same: Batch,
    recipe: Recipe,
    old: Batch,
    rates: Sequence[float],
    *,
    shown: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> list[float | None]:
    """Return the drift after one update at each rate.

    It is the KL divergence, in nats a position, of the predictions on old data from those of the
    unmoved model. It grows with the square of the rate while the update is small.

    Args:
        model: The trained model; it is left unchanged.
        same: The batch of the gradient, of the new task.
        recipe: The recipe; its learning rate is ignored.
        old: Data of what the model could do before.
        rates: Learning rates.
        shown: Shows the model as one of the old data, where its head is another.

    Returns:
        A drift a rate; None where there is no gradient.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model), without_gradients(params):
        backward(run_pass(model, same).total)
        present = [p for p in params if p.grad is not None]
        norm = math.sqrt(sum(square_sum(definite(p.grad)) for p in present))
        if not 0 < norm < math.inf:
            return [None] * len(rates)
        direction = first_direction(model, recipe, norm, present)
        before = _log_probabilities(shown(model), old)
        drifts: list[float | None] = []
        with moving(present, direction) as steer:
            for rate in rates:
                steer(rate)
                after = _log_probabilities(shown(model), old)
                drifts.append(
                    float(F.kl_div(after, before, reduction="batchmean", log_target=True))
                )
        return drifts


@torch.no_grad()
def _log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        return definite(run_pass(model, batch).output).float().log_softmax(-1).flatten(0, -2)
    finally:
        model.train(was_training)


def _step(
    kind: Callable[..., torch.optim.Optimizer],
    options: Mapping[str, Any],
    weight: Tensor,
    gradient: Tensor,
) -> Tensor:
    parameter = nn.Parameter(weight.detach().clone())
    parameter.grad = gradient
    with torch.enable_grad():
        kind([{**options, "params": [parameter]}], lr=options["lr"]).step()
    change: Tensor = (parameter.detach() - weight) / options["lr"]
    return change


def of_response(response: ResponseProfile) -> dict[str, float]:
    """Return the columns of a table of ladders: log10 of a rate is told as that of 1 over it."""
    points = [p for p in response.points if math.isfinite(p.fresh)]
    best = min(points, key=lambda p: p.fresh).rate if points else None
    found = {
        "update_rms_rate": _log(response.update_rms),
        "critical_rate": _minus(_crossing(response.points, 0.0)),
        "rise_rate": _minus(_crossing(response.points, 0.25)),
        "best_step_rate": _minus(_log(best)),
        "output_rate": _log(response.output_slope),
        "grad_norm": _log(response.grad_norm),
        "grad_rms": _log(response.grad_rms),
        "overshoot": response.overshoot,
    }
    return {name: math.nan if value is None else value for name, value in found.items()}


def _crossing(points: tuple[ResponsePoint, ...], level: float) -> float | None:
    """Return log10 of the rate at which the change of the loss first rises past a level."""
    for left, right in pairwise(points):
        before, after = left.fresh, right.fresh
        if after < level:
            continue
        low, high = math.log10(left.rate), math.log10(right.rate)
        if before >= level or not math.isfinite(after):
            return low if before >= level else high
        return low + (high - low) * (level - before) / (after - before)
    return None


def _log(value: float | None) -> float | None:
    return math.log10(value) if value is not None and 0 < value < math.inf else None


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
