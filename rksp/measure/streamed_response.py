"""Measure the response of a streamed model: the same numbers, in a few passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rksp.batch import Batch, logits_of
from rksp.ground.allocator import freed_memory_returned
from rksp.ground.errors import NotCovered
from rksp.ground.model import definite
from rksp.kernels.cross_entropy import cross_entropy
from rksp.measure.first_update import FirstUpdate
from rksp.measure.response import measure_response, search, without_cache
from rksp.measure.response_profile import (
    GRADIENT_NOT_FINITE,
    ResponsePoint,
    ResponseProfile,
    unmeasured,
)
from rksp.models.as_found import evaluating
from rksp.models.streaming.gradients import Gradients, Key, chunks, part_shape
from rksp.models.streaming.lanes import Lanes
from rksp.models.streaming.memory import free_memory, readable
from rksp.models.streaming.meter import Meter, Progress
from rksp.models.streaming.planning import ResponsePlan, plan_response, response_sizes
from rksp.models.streaming.products import run_all
from rksp.models.streaming.slices import Rows
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.tape import taping
from rksp.recipe import Recipe

_WORK = 3 + 13  # forward, backward (twice as much), and the lanes, in loadings of all weights
AHEAD = 2  # halvings per sweep: three lanes instead of two, but half as many sweeps


def respond(
    model: nn.Module,
    stream: Stream | None,
    same: Batch,
    fresh: Batch,
    recipe: Recipe,
    progress: Progress | None = None,
) -> ResponseProfile:
    """Measure the response of a model in memory, or of one that a closed stream fed.

    Args:
        model: The model, or the skeleton of a streamed one.
        stream: The closed stream of a streamed model, else None.
        same: The batch of the gradient.
        fresh: A batch that the gradient has not seen.
        recipe: The recipe; its learning rate is ignored.
        progress: Called as the work proceeds; the first label states the expected cost.

    Returns:
        The profile; it holds only a reason if the response does not apply.
    """
    if stream is None:
        return measure_response(model, same, fresh, recipe)
    try:
        with stream.again() as opened:
            return measure_streamed_response(opened, same, fresh, recipe, progress)
    except NotCovered as error:
        return unmeasured(str(error), 0.0)


def measure_streamed_response(
    stream: Stream,
    same: Batch,
    fresh: Batch,
    recipe: Recipe,
    progress: Progress | None = None,
) -> ResponseProfile:
    """Measure what `measure_response` would give for the same weights in memory.

    One forward and one backward pass leave the gradients as factors of products
    (`rksp.models.streaming.gradients`). Whenever a weight is loaded, the recipe's first update is
    made again from them, in parts of rows. Then four sweeps evaluate two to five rates each; a
    sweep loads each weight once.

    Args:
        stream: An open stream, rehearsed on a batch like these.
        same: The batch of the gradient.
        fresh: A batch that the gradient has not seen.
        recipe: The recipe; its learning rate is ignored.
        progress: Called as the work proceeds; the first label states the expected cost.

    Returns:
        The profile; it holds only a reason if the gradient is zero or not finite.

    Raises:
        NotCovered: It does not fit in memory, or the optimizer needs whole weights that are too
            large to hold.
    """
    model = stream.model
    share = same.count / (same.count + fresh.count)
    same, fresh = without_cache(model, same), without_cache(model, fresh)
    meter = Meter(progress, _WORK * _size(stream), plan_of(stream, same).describe())
    meter.add(0)
    stream.supply.buffers.limit *= 2  # room for updates and moved weights
    with evaluating(model):
        with freed_memory_returned():  # activations make room for the factors of gradients
            gradients = _gradients(stream, same, meter)
        norm = math.sqrt(sum(gradients.squared_norm(k, _shape(stream, k)) for k in gradients))
        if not math.isfinite(norm):
            return unmeasured(GRADIENT_NOT_FINITE, 3 * share)
        if norm == 0:
            return unmeasured("the gradient is zero", 3 * share)
        update = FirstUpdate(model, gradients, recipe, norm)
        _check_whole(stream, update)
        sums: dict[str, Any] = _sums(stream, update)
        sweeps = _Sweeps(stream, update, same, fresh, meter)
        found = search(sweeps.look, sums["update_rms"], ahead=AHEAD)
    meter.finish()
    return ResponseProfile(
        loss=sweeps.base,
        output_slope=None if math.isnan(sweeps.output_slope) else sweeps.output_slope,
        grad_norm=norm,
        grad_rms=norm / math.sqrt(sums.pop("count")),
        # The data of the gradient forward and backward; then every lane.
        forward_passes=3 * share + sweeps.passes,
        **sums,
        **found.fields(),
    )


def _size(stream: Stream) -> int:
    """Return the bytes of all weights."""
    return sum({slot.name: slot.size for slot in stream.slots}.values())


def plan_of(stream: Stream, same: Batch) -> ResponsePlan:
    """Plan the response.

    Raises:
        NotCovered: It needs more memory than is available.
    """
    plan = plan_response(stream, *response_sizes(stream, same))
    limit = free_memory() if stream.max_memory is None else stream.max_memory
    if plan.peak > limit:
        raise NotCovered(
            f"it needs {readable(plan.peak)} of memory even when streamed, more than "
            f"{readable(limit)}"
        )
    return plan


def _gradients(stream: Stream, same: Batch, meter: Meter) -> Gradients:
    """Compute the gradients, on one batch, of the loss that training minimizes."""
    with taping(stream, meter.add) as tape:
        logits, aux = logits_of(stream.model, same)
        loss = cross_entropy(logits, definite(same.labels))
        (loss if aux is None else loss + aux).backward()
    return tape.gradients


def _shape(stream: Stream, key: Key) -> tuple[int, ...]:
    name, index = key
    shape = tuple(stream.empty[name].shape)
    return shape if index is None else shape[1:]


def _check_whole(stream: Stream, update: FirstUpdate) -> None:
    """Refuse an optimizer that needs a whole weight that is only loaded in parts."""
    for slot in (*stream.stacks, *stream.tall):
        if slot.name in update.gradients.names and not update.is_by_rows(slot.name):
            raise NotCovered(
                f"the first update of this optimizer needs all of {slot.name}, which is too large "
                "to hold in memory"
            )


def _sums(stream: Stream, update: FirstUpdate) -> dict[str, float]:
    """Compute the sizes of the gradient and of the update in one read of both."""
    gradients = update.gradients
    jobs, whole = [], []
    for key in gradients:
        shape = _shape(stream, key)
        if update.needs_values(key[0]):
            whole.append(key)
            continue
        for start, stop in chunks(shape):
            values = torch.empty(part_shape(shape, start, stop), device="meta")
            jobs.append(partial(_sums_of, update, key, start, stop, values))
    parts = run_all(stream.supply.products, jobs)
    for key in whole:
        parts += _sums_with_values(stream, update, key)
    count = sum(stream.empty[name].numel() for name in gradients.names)
    return {
        "count": count,
        "grad_max": max(part[0] for part in parts),
        "update_rms": math.sqrt(sum(part[1] for part in parts) / count),
        "descent": -sum(part[2] for part in parts),
    }


@torch.no_grad()
def _sums_of(
    update: FirstUpdate, key: Key, start: int, stop: int, values: Tensor
) -> tuple[float, float, float]:
    """Return largest gradient, squared update and their product over some given rows."""
    gradient = update.gradient(key, start, stop, tuple(values.shape))
    found = update.rows(key, start, stop, values, gradient).flatten()
    gradient = gradient.flatten()
    return float(gradient.abs().max()), float(found.dot(found)), float(gradient.dot(found))


def _sums_with_values(
    stream: Stream, update: FirstUpdate, key: Key
) -> list[tuple[float, float, float]]:
    """Compute the same sums over a weight that must be loaded."""
    name, index = key
    slot = next(slot for slot in stream.slots if slot.name == name)
    if slot in stream.tall:
        parts: Iterable[tuple[int, int, Tensor]] = Rows(
            slot.empty, stream.supply.read(slot)
        ).parts()
    else:
        wait = (
            stream.supply.begin(slot)
            if index is None
            else stream.supply.read(slot)(index, index + 1)
        )
        weight = wait() if index is None else wait()[0]
        parts = [(0, len(weight) if weight.dim() else 1, weight)]
    found = []
    for first, last, part in parts:
        shape = tuple(part.shape)
        edges = chunks(shape) if update.is_by_rows(name) else [(0, last)]
        found += run_all(
            stream.supply.products,
            [
                partial(_sums_of, update, key, first + a, first + b, part[a:b] if shape else part)
                for a, b in edges
            ],
        )
    return found


class _Sweeps:
    """Passes at several rates at once.

    Attributes:
        base: Loss of the unmoved model on the fresh batch.
        output_slope: Relative change of the logits of both batches per unit rate, at the first
            rate; NaN before.
        passes: Cost so far, in forward passes over both batches.
    """

    def __init__(
        self, stream: Stream, update: FirstUpdate, same: Batch, fresh: Batch, meter: Meter
    ) -> None:
        self.stream, self.update, self.meter = stream, update, meter
        self.fresh, self.both = fresh, _joined(same, fresh)
        self.base = self.output_slope = math.nan
        self.passes = 0.0
        self._on_both: tuple[float, ...] = ()  # rates of the lanes that run both batches
        self._output: Tensor | None = None  # of the unmoved model

    def look(self, rates: Sequence[float]) -> list[ResponsePoint]:
        """Return the point at each rate; the first call also measures the unmoved model."""
        is_first = math.isnan(self.output_slope) and not self.passes
        lanes = [0.0, *rates] if is_first else list(rates)
        self._on_both = (0.0, rates[0]) if is_first else ()
        found = Lanes(self.stream, self.update, lanes, self.meter.add).run(self._pass)
        share = self.fresh.count / self.both.count
        self.passes += share * len(lanes) + (1 - share) * len(self._on_both)
        self._output = None
        return [
            ResponsePoint(rate=rate, fresh=loss - self.base)
            for rate, loss in list(zip(lanes, found, strict=True))[-len(rates) :]
        ]

    def _pass(self, rate: float) -> float:
        """Return the loss on the fresh batch at a rate."""
        if rate not in self._on_both:
            logits, _ = logits_of(self.stream.model, self.fresh)
            return float(cross_entropy(logits.float(), definite(self.fresh.labels)))
        logits = logits_of(self.stream.model, self.both)[0].float()
        of_fresh = len(logits) * self.fresh.count // self.both.count
        loss = float(cross_entropy(logits[-of_fresh:], definite(self.fresh.labels)))
        if self._output is None:  # the first lane is the unmoved model and ends first
            self._output, self.base = logits, loss
        else:
            scale = float(self._output.norm()) or 1.0
            self.output_slope = float(logits.sub_(self._output).norm()) / scale / rate
        return loss


def _joined(same: Batch, fresh: Batch) -> Batch:
    """Join both batches into one."""
    first: Any = same.inputs
    second: Any = fresh.inputs
    inputs: Any
    if isinstance(first, Tensor):
        inputs = torch.cat([first, second])
    else:
        inputs = {
            key: torch.cat([value, second[key]]) if isinstance(value, Tensor) else value
            for key, value in first.items()
        }
    return Batch(inputs=inputs, labels=torch.cat([definite(same.labels), definite(fresh.labels)]))
