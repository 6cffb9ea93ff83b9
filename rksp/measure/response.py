"""Measure a model's first gradient, how it reacts to steps along its first update, its drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from rksp.datasets.batch import Batch, logits_of, run_pass
from rksp.documents.shown import (
    ResponsePoint,
    ResponseProfile,
    profile_of_gradient,
)
from rksp.ground.allocator import freed_memory_returned, return_freed_memory
from rksp.ground.model import Progress, definite
from rksp.kernels.cross_entropy import cross_entropy
from rksp.models.as_found import evaluating
from rksp.models.streaming.gradients import GradientSize, chunks, size_of, taping
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.weights import as_real, square_sum
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer, optimizer_of_class

_AT_ONCE = 1 << 24  # entries of gradients after which freed memory goes back to the system


def measure_gradient(model: nn.Module, same: Batch, share: float = 1.0) -> ResponseProfile:
    """Measure the first gradient alone: one forward and one backward pass.

    The gradient of each parameter is dropped as soon as it is whole, so memory holds the weights
    and a few of the largest gradients. The model is left bitwise unchanged.

    Args:
        model: As for `measure_response`.
        same: The batch of the gradient.
        share: What a pass over it counts in `forward_passes`.

    Returns:
        The profile without all that needs a step; it holds only a reason if the gradient is zero
        or not finite.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model), without_gradients(params):
        sizes = _dropped_sizes(model, same, params)
        if sizes is None:  # a part of the graph ran backward by itself: gradients must be kept
            backward(run_pass(model, same).total)
            sizes = {id(p): size_of(p.grad) for p in params if p.grad is not None}
    # In the order of the parameters, whatever the order of the backward pass.
    return profile_of_gradient([sizes[id(p)] for p in params if id(p) in sizes], 3 * share)


def _dropped_sizes(
    model: nn.Module, same: Batch, params: list[nn.Parameter]
) -> dict[int, GradientSize] | None:
    sizes: dict[int, GradientSize] = {}
    in_pieces, dropped = set(), 0

    def note(p: Tensor) -> None:
        nonlocal dropped
        if id(p) in sizes:
            in_pieces.add(id(p))
        sizes[id(p)], p.grad = size_of(definite(p.grad)), None
        dropped += p.numel()
        if dropped > _AT_ONCE:  # what is freed would stay beside what the next pieces need
            return_freed_memory()
            dropped = 0

    register: Callable[..., RemovableHandle] = Tensor.register_post_accumulate_grad_hook
    with ExitStack() as stack:
        for p in params:
            stack.callback(register(p, note).remove)
        total = run_pass(model, same).total
        return_freed_memory()
        backward(total)
    return None if in_pieces else sizes


def measure_streamed_gradient(
    stream: Stream,
    same: Batch,
    share: float = 1.0,
    progress: Progress = lambda done, total, label: None,
) -> ResponseProfile:
    """Measure what `measure_gradient` would give for the same weights in memory.

    The gradients stay factors of products (`rksp.models.streaming.gradients`) until the backward
    pass is over; then each is multiplied out by parts of rows.

    Args:
        stream: A closed stream, rehearsed on a batch like this.
        same: The batch of the gradient.
        share: As for `measure_gradient`.
        progress: Called as the work proceeds.

    Returns:
        The profile; it holds only a reason if the gradient is zero or not finite.
    """
    with stream as opened, evaluating(opened.model):
        # Forward, and backward twice as much, in loadings of all weights.
        done, total = 0, 3 * opened.size

        def served(size: int) -> None:
            nonlocal done
            done = min(total, done + size)
            progress(done, total, "first gradient")

        served(0)
        with freed_memory_returned(), taping(opened, served) as tape:
            logits, aux = logits_of(opened.model, same)
            loss = cross_entropy(logits, definite(same.labels))
            run_backward: Callable[[], None] = (loss if aux is None else loss + aux).backward
            run_backward()  # a method of the tensor, so that it leaves the tape
        gradients, pool = tape.gradients, opened.supply.products
        sizes = [gradients.size(key, opened.shape(*key), pool) for key in gradients]
        served(total)
    return profile_of_gradient(sizes, 3 * share)


@contextmanager
def without_gradients(params: list[nn.Parameter]) -> Iterator[None]:
    """Leave no gradients."""
    try:
        yield
    finally:
        for p in params:
            p.grad = None


_LOWEST, _HIGHEST = -6.0, 0.5  # decades of RMS update searched for the critical rate
_BISECTIONS = 6  # to 6.5 / 2^6 = 0.1 decades
_BEYOND = (3.0, 10.0)  # multiples of the critical rate evaluated afterwards
_SMALL = 1e-4  # RMS update of the step for the linear response
DRIFT_RATE = 1e-3  # at which the drift is told
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
    share = same.count / (same.count + fresh.count)
    with evaluating(model), without_gradients(params):
        first = run_pass(model, same)
        backward(first.total)
        before = [_kept(first.output)]
        del first
        present = [p for p in params if p.grad is not None]
        first_gradient = profile_of_gradient(
            [size_of(definite(p.grad)) for p in present], 3 * share
        )
        if first_gradient.reason is not None:
            return first_gradient
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
    return replace(
        first_gradient,
        loss=base,
        update_rms=update_rms,
        output_slope=None if math.isnan(slopes[0]) else slopes[0],
        # The data of the gradient three times and for the slope; the other before and per point.
        forward_passes=4 * share + (1 - share) * (1 + len(found["points"])),
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
        direction.append(gradient)
        gradient, weight = as_real(gradient), as_real(p.detach())
        kind, options = groups[id(p)]
        spec = optimizer_of_class(kind)
        rule = None if spec is None else spec.by_rows
        rows = [(0, len(p) if p.dim() else 1)] if rule is None else chunks(tuple(p.shape))
        for start, stop in rows:  # a whole embedding would stand beside its update
            part = gradient[start:stop] if p.dim() else gradient
            here = weight[start:stop] if p.dim() else weight
            if rule is None:
                part.copy_(_step(kind, options, here, part * clip))
            else:
                found, decay = rule(part * clip, options), options.get("weight_decay", 0.0)
                part.copy_(found.sub_(here, alpha=decay) if decay else found)
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
