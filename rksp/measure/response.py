"""Measure how a model reacts to the learning rate, in a few passes along its first update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rksp.batch import Batch, run_pass
from rksp.ground.allocator import return_freed_memory
from rksp.ground.model import definite
from rksp.measure.first_update import clipping, is_by_rows, kinds_of, step_of
from rksp.measure.response_profile import (
    GRADIENT_NOT_FINITE,
    ResponsePoint,
    ResponseProfile,
    unmeasured,
)
from rksp.models.as_found import evaluating
from rksp.models.streaming.gradients import chunks
from rksp.models.streaming.scales import as_real, square_sum
from rksp.recipe import Recipe

_LOWEST, _HIGHEST = -6.0, 0.5  # decades of RMS update searched for the critical rate
_BISECTIONS = 6  # to 6.5 / 2^6 = 0.1 decades
_BEYOND = (3.0, 10.0)  # multiples of the critical rate evaluated afterwards
_SMALL = 1e-4  # RMS update of the step for the linear response


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
    share = same.count / (same.count + fresh.count)
    same, fresh = without_cache(model, same), without_cache(model, fresh)
    with evaluating(model), without_gradients(params):
        first = run_pass(model, same)
        first.total.backward()
        before = [_kept(first.output)]
        del first
        present = [p for p in params if p.grad is not None]
        count = sum(p.numel() for p in present)
        norm = math.sqrt(sum(square_sum(definite(p.grad)) for p in present))
        if not math.isfinite(norm):
            return unmeasured(GRADIENT_NOT_FINITE, 3 * share)
        if norm == 0:
            return unmeasured("the gradient is zero", 3 * share)
        grad_max = max(_largest(definite(p.grad)) for p in present)
        direction, descent = first_direction(model, recipe, norm, present)
        update_rms = math.sqrt(sum(map(square_sum, direction)) / count)
        return_freed_memory()  # moved weights do not fit into the holes of the backward pass
        with torch.no_grad():
            other = run_pass(model, fresh)
        base, before = float(other.loss), [*before, _kept(other.output)]
        del other
        size = _norm(before) or 1.0
        slopes: list[float] = []  # of the first point, which is the smallest step

        def point(rate: float) -> ResponsePoint:
            steer(rate)
            moved = run_pass(model, fresh)
            loss = float(moved.loss)
            if not slopes:  # one output at a time, in place of what it was before
                changes = [_change(before.pop(), moved.output)]
                del moved
                changes.append(_change(before.pop(), run_pass(model, same).output))
                slopes.append(_norm(changes) / size / rate)
            return ResponsePoint(rate=rate, fresh=loss - base)

        @torch.no_grad()
        def look(rates: Sequence[float]) -> list[ResponsePoint]:
            return [point(rate) for rate in rates]

        with moving(present, direction) as steer:
            found = search(look, update_rms)
    return ResponseProfile(
        loss=base,
        grad_norm=norm,
        grad_rms=norm / math.sqrt(count),
        grad_max=grad_max,
        update_rms=update_rms,
        descent=descent,
        output_slope=None if math.isnan(slopes[0]) else slopes[0],
        # The data of the gradient three times and for the slope; the other before and per point.
        forward_passes=4 * share + (1 - share) * (1 + len(found.points)),
        **found.fields(),
    )


def _largest(values: Tensor) -> float:
    """Return the largest absolute entry of a tensor that is not empty."""
    low, high = torch.aminmax(as_real(values))  # makes no second tensor
    return max(-float(low), float(high))


def _kept(output: Tensor | None) -> Tensor | None:
    """Return a float32 copy of what a model shows; later passes may write over the original."""
    return None if output is None else output.detach().to(torch.float32, copy=True)


def _change(before: Tensor | None, after: Tensor | None) -> Tensor | None:
    """Return the difference in place of `before`; None where a model shows nothing."""
    return None if after is None or before is None else before.sub_(after)


def _norm(tensors: Iterable[Tensor | None]) -> float:
    """Return the Euclidean norm of all entries together; NaN where a model shows none."""
    squares = (math.nan if part is None else float(part.norm()) ** 2 for part in tensors)
    return math.sqrt(sum(squares))


def without_cache(model: nn.Module, batch: Batch) -> Batch:
    """Return the batch with the cache off, for a model that would keep every key and value."""
    if batch.objective is not None or not isinstance(batch.inputs, dict):
        return batch
    if "use_cache" not in inspect.signature(model.forward).parameters:
        return batch
    return replace(batch, inputs=batch.inputs | {"use_cache": False})


@torch.no_grad()
def first_direction(
    model: nn.Module, recipe: Recipe, norm: float, params: list[nn.Parameter]
) -> tuple[list[Tensor], float]:
    """Compute the recipe's first update per unit rate in place of the gradients, and its descent.

    Args:
        model: The model.
        recipe: The recipe; its learning rate is ignored.
        norm: Norm of the gradient before clipping.
        params: The parameters with a gradient, which is removed.

    Returns:
        The update by parameter, and −g·u.
    """
    kinds, clip = kinds_of(model, recipe), clipping(recipe, norm)
    names = {id(p): name for name, p in model.named_parameters()}
    direction, descent = [], 0.0
    for p in params:
        gradient, p.grad = definite(p.grad), None
        kind, weight = kinds[names[id(p)]], as_real(p.detach())
        direction.append(gradient)
        gradient = as_real(gradient)
        rows = chunks(tuple(p.shape)) if is_by_rows(kind) else [(0, len(p) if p.dim() else 1)]
        for start, stop in rows:  # a whole embedding would stand beside its update
            part = gradient[start:stop] if p.dim() else gradient
            here = weight[start:stop] if p.dim() else weight
            update = step_of(kind, part * clip, here)
            descent -= float((part * update).sum())
            part.copy_(update)
    return direction, descent


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The rate at which the loss returns to its start, and every point of the search."""

    points: tuple[ResponsePoint, ...]
    critical_rate: float | None
    overshoot: float | None

    def fields(self) -> dict[str, Any]:
        """Return the fields under their names in `ResponseProfile`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def search(
    look: Callable[[Sequence[float]], list[ResponsePoint]], update_rms: float, *, ahead: int = 1
) -> Search:
    """Bisect the logarithm of the rate on the sign of the change of the fresh loss.

    Args:
        look: Returns the point at each of several rates.
        update_rms: RMS of the update per unit rate.
        ahead: Halvings that one call decides, for 2^ahead − 1 rates. Points off the way to the
            answer are dropped, so the result is the same for any number.

    Returns:
        The critical rate, the slope and overshoot, and the points.
    """
    low, high = _LOWEST, _HIGHEST
    first, points = [_SMALL / update_rms], []
    for done in range(0, _BISECTIONS, ahead):
        middles = _middles(low, high, min(ahead, _BISECTIONS - done))
        rates = [10**middle / update_rms for middle in middles]
        found = look(first + rates)
        points += found[: len(first)]
        known = dict(zip(middles, found[len(first) :], strict=True))
        first = []
        while (middle := (low + high) / 2) in known:
            points.append(known[middle])
            # "< 0" and not "<= 0": a loss that became NaN has certainly stopped falling.
            falls = known[middle].fresh < 0
            low, high = (middle, high) if falls else (low, middle)
    critical = overshoot = None
    if low != _LOWEST and high != _HIGHEST:
        critical = 10 ** ((low + high) / 2) / update_rms
        points += look([critical * factor for factor in _BEYOND])
        overshoot = points[-1].fresh
    return Search(
        points=tuple(sorted({p.rate: p for p in points}.values(), key=lambda p: p.rate)),
        critical_rate=critical,
        overshoot=overshoot,
    )


def _middles(low: float, high: float, levels: int) -> list[float]:
    """Return, in order, the points that `levels` halvings of an interval may visit."""
    if levels == 0:
        return []
    middle = (low + high) / 2
    left, right = _middles(low, middle, levels - 1), _middles(middle, high, levels - 1)
    return [*left, middle, *right]


@contextmanager
def without_gradients(params: list[nn.Parameter]) -> Iterator[None]:
    """Leave no gradients."""
    try:
        yield
    finally:
        for p in params:
            p.grad = None
