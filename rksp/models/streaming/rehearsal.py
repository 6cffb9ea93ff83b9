"""Rehearse a pass without weights: how a model can be streamed, and what that takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from torch import nn

from rksp.datasets.batch import Batch
from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.kernels.wide_output import UnmadeOutputs
from rksp.models.anatomy.chains import Chain, find_chains
from rksp.models.streaming.memory import (
    OVERHEAD,
    MemoryPlan,
    free_memory,
    plan_memory,
    readable,
    resident_memory,
)
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.units import GRAINS, slice_size

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


def gradient_peak(stream: Stream, same: Batch) -> int:
    """Predict the bytes of a streamed gradient, which keeps the inputs and outputs of weights.

    Args:
        stream: A rehearsed stream.
        same: The batch of the gradient.
    """
    config, tokens = getattr(stream.model, "config", None), definite(same.labels).numel()
    chosen = getattr(config, "num_experts_per_tok", None) or 2
    kept = 0
    for slot in {slot.name: slot for slot in stream.slots}.values():
        shape = slot.empty.shape
        if len(shape) == 2 and not isinstance(slot.module, nn.Embedding):
            kept += tokens * sum(shape)
        elif len(shape) == 3 and slot in stream.stacks:
            kept += tokens * min(chosen, shape[0]) * sum(shape[1:])
        elif len(shape) > 2:
            kept += slot.empty.numel()
    logits = 4 * 3 * tokens * (getattr(config, "vocab_size", None) or 0)
    weights = 2 * definite(stream.plan).weights  # what multiplies takes as much again
    return resident_memory() + OVERHEAD + int(1.1 * (weights + logits + _GRAPH * 4 * kept))


def check_gradient(stream: Stream, same: Batch) -> None:
    """Refuse a gradient that will not fit, before the pass that precedes it.

    Args:
        stream: A stream that was just rehearsed.
        same: The batch of the gradient.

    Raises:
        InputError: It does not fit; the message has the prediction and says what does.
    """
    peak, passes = gradient_peak(stream, same), definite(stream.plan).peak
    limit = free_memory() if stream.max_memory is None else stream.max_memory
    if peak > limit:
        raise InputError(
            f"The gradient of {stream.target} needs {readable(peak)} of memory even when streamed, "
            f"more than {readable(limit)}; --evidence forward needs {readable(passes)} and fits, "
            f"or give --max-memory {math.ceil(peak / 1e6)}MB if there is as much."
        )


def _slice_size(stream: Stream) -> int:
    """Return the bytes that are loaded at a time of the weights that are not loaded whole."""
    together: dict[nn.Module, int] = {}  # both stacks of a module are in use at once
    for slot in stream.stacks:
        together[slot.module] = together.get(slot.module, 0) + slice_size(slot)
    return max((*together.values(), *map(slice_size, stream.tall)), default=0)


Result = TypeVar("Result")


def rehearse(
    stream: Stream, run: Callable[[], Result], *, sequences: int = 1, entries: int = 0
) -> Result:
    """Call `run` in a rehearsal, with the finest grain that the model supports.

    Args:
        stream: Not begun yet.
        run: Runs the model on one sequence.
        sequences: Number of sequences of the pass that will follow.
        entries: States times width of that pass.

    Returns:
        The result of `run`.

    Raises:
        InputError: The pass would not fit in memory, or the gradient that is to follow it.
        NotCovered: The model uses weights outside of the modules that hold them.
    """
    failure: Exception | None = None
    for _ in _attempts(stream):
        try:
            with stream.rehearsal():
                result = run()
            break
        except NotCovered:
            raise
        except (InputError, RuntimeError, NotImplementedError, TypeError) as error:
            failure = failure or error
    else:
        text = " ".join(str(failure).split())[:200]
        raise NotCovered(
            f"{type(stream.model).__name__} cannot be streamed: it uses weights outside of the "
            f"modules that hold them ({text}); use --stream never."
        ) from failure
    stream.plan, stream.supply.ahead = plan_stream(stream, sequences, entries)
    stream.supply.buffers.limit = stream.plan.weights
    if stream.gradient_batch is not None:
        check_gradient(stream, stream.gradient_batch)
    return result


def _attempts(stream: Stream) -> Iterator[None]:
    """Try coarser and coarser grains: matrices by rows, whole, by block, the rest at once."""
    stream.attach("module")
    yield
    stream.tall = ()
    for grain in GRAINS:
        stream.attach(grain)
        yield


def stream_of(model: nn.Module) -> Stream | None:
    """Return the stream that feeds a model, or None."""
    return getattr(model, "_rksp_stream", None)


def locate_chains(
    model: nn.Module, run: Callable[[], object], path: str | None, sequences: int, states: int
) -> tuple[Chain, ...]:
    """Find the chains as `find_chains` does; a streamed model is rehearsed for it.

    Args:
        model: The model.
        run: Runs the model on one sequence.
        path: As in `find_chains`.
        sequences: Number of sequences of the pass that will follow, to predict its memory.
        states: Number of states of that pass.

    Returns:
        The chains.
    """
    stream = stream_of(model)
    find = lambda: find_chains(model, run, path=path)
    if stream is None:
        return find()
    width = getattr(getattr(model, "config", None), "hidden_size", 0)
    return rehearse(stream, find, sequences=sequences, entries=states * int(width or 0))


def computing(model: nn.Module) -> AbstractContextManager[object]:
    """Return the context for a pass: what computes large products, streamed or in memory."""
    stream = stream_of(model)
    return UnmadeOutputs() if stream is None else stream.computing()
