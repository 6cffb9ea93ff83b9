"""Plan how much a stream prepares ahead of use, and whether its pass fits in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from rksp.batch import Batch
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.models.streaming.memory import (
    OVERHEAD,
    MemoryPlan,
    free_memory,
    plan_memory,
    readable,
    resident_memory,
)
from rksp.models.streaming.slices import slice_size

if TYPE_CHECKING:
    from rksp.models.streaming.stream import Stream

AHEAD = 256 * 2**20  # bytes prepared while a unit computes, unless one unit is larger


def plan_stream(stream: Stream, sequences: int, entries: int) -> tuple[MemoryPlan, int]:
    """Predict the peak of a pass; if memory is short, less is prepared ahead.

    Args:
        stream: A stream that was just rehearsed on one sequence.
        sequences: Number of sequences of the pass.
        entries: States times width of one block.

    Returns:
        The plan, and the bytes to prepare ahead.

    Raises:
        InputError: The pass does not fit even with nothing prepared ahead.
    """
    inner = max((unit.size for unit in stream.units if unit.is_in_list), default=0)
    wished = max(AHEAD, inner) if stream.asked_ahead is None else stream.asked_ahead
    limit = free_memory() if stream.max_memory is None else stream.max_memory
    for ahead in (wished, inner, wished // 4, 0):
        plan = plan_memory(
            stream.supply.order,
            ahead=ahead,
            slice_size=_slice_size(stream),
            widest=stream.widest * sequences,
            logits=stream.logits * sequences,
            entries=entries,
            workers=stream.workers,
        )
        if plan.peak <= limit:
            return plan, ahead
    plan.check(limit, stream.target)
    raise AssertionError("a plan beyond the limit is refused")


# What a forward pass keeps for the backward pass, as a share of the inputs and outputs of all
# products (1.13 of Llama). The factors of all gradients are 0.9 to 1.03 of these.
_GRAPH = 1.2
_LANES = 5  # most lanes of a sweep
# Multiples of what a pass takes. Arithmetic over one batch: forward and backward (3), two passes
# over both batches (4), 11 over one, and gradients multiplied out five times (2). Loading of
# weights: forward, backward, sums and four sweeps; to make updates and to move weights along them
# costs two more.
_BATCHES, _LOADS = 3 + 4 + 11 + 2, 7 + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePlan:
    """Predicted cost of a streamed response.

    Attributes:
        peak: Peak memory in bytes.
        processor_seconds: Estimated from the preceding pass; None if there was none.
        seconds: The same on the clock, if the machine stays as busy as it was.
    """

    peak: int
    processor_seconds: float | None = None
    seconds: float | None = None

    def describe(self) -> str:
        """Return the plan as one line."""
        time = ""
        if self.seconds is not None:
            time = (
                f", about {self.seconds / 60:.1f} minutes, "
                f"{definite(self.processor_seconds) / 60:.1f} of processor time"
            )
        return f"response: {readable(self.peak)}{time}"


def response_sizes(stream: Stream, same: Batch) -> tuple[int, int, int]:
    """Return the sequences, tokens and classes of one of a response's two batches."""
    classes = getattr(getattr(stream.model, "config", None), "vocab_size", None) or 0
    return same.count, definite(same.labels).numel(), classes


def plan_response(stream: Stream, sequences: int, tokens: int, classes: int) -> ResponsePlan:
    """Predict a streamed response, which keeps every weight's inputs and outputs.

    Args:
        stream: A rehearsed stream.
        sequences: Sequences of one of its two batches.
        tokens: Tokens of one of its two batches.
        classes: Number of classes of the logits.

    Returns:
        The plan.
    """
    chosen = getattr(getattr(stream.model, "config", None), "num_experts_per_tok", None) or 2
    kept = 0
    for slot in {slot.name: slot for slot in stream.slots}.values():
        shape = slot.empty.shape
        if len(shape) == 2 and not isinstance(slot.module, nn.Embedding):
            kept += tokens * sum(shape)
        elif len(shape) == 3 and slot in stream.stacks:
            kept += tokens * min(chosen, shape[0]) * sum(shape[1:])
        elif len(shape) > 2:
            kept += slot.empty.numel()
    logits = 2 * tokens * classes
    # Updates and moved weights take as much again as the weights of a pass.
    weights = 0 if stream.plan is None else 2 * stream.plan.weights
    lanes = _LANES * 4 * 2 * stream.widest + 3 * 4 * logits
    inside = weights + max(_GRAPH * 4 * kept, 4 * kept + lanes)
    peak = resident_memory() + OVERHEAD + int(1.1 * inside)
    cost = stream.cost
    if cost is None:
        return ResponsePlan(peak=peak)
    share = sequences / cost.sequences
    worked = _BATCHES * share * cost.computing + _LOADS * cost.loading
    busy = max(cost.computing + cost.loading, 1e-9) / max(cost.seconds, 1e-9)
    return ResponsePlan(peak=peak, processor_seconds=worked, seconds=worked / busy)


def check_response(stream: Stream, same: Batch) -> None:
    """Refuse a response that will not fit, before the pass that precedes it.

    Args:
        stream: A stream that was just rehearsed.
        same: One of the two batches of the response.

    Raises:
        InputError: It does not fit; the message has the prediction and says what does.
    """
    peak = plan_response(stream, *response_sizes(stream, same)).peak
    passes = definite(stream.plan).peak
    limit = free_memory() if stream.max_memory is None else stream.max_memory
    if peak > limit:
        raise InputError(
            f"The response of {stream.target} needs {readable(peak)} of memory even when streamed, "
            f"more than {readable(limit)}; --evidence forward needs {readable(passes)} and fits, "
            f"or give --max-memory {math.ceil(peak / 1e6)}MB if there is as much."
        )


def _slice_size(stream: Stream) -> int:
    """Return the bytes that are loaded at a time of the weights that are not loaded whole."""
    together: dict[nn.Module, int] = {}  # both stacks of a module are in use at once
    for slot in stream.stacks:
        together[slot.module] = together.get(slot.module, 0) + slice_size(slot)
    return max((*together.values(), *map(slice_size, stream.tall)), default=0)
