"""Decide whether to stream a model, and open a stream for a source."""

from __future__ import annotations

from typing import Literal

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.models.refusals import refusals, refused
from rksp.models.source import ModelSource
from rksp.models.streaming.checkpoint_stream import CheckpointWeights
from rksp.models.streaming.loading import choose_device
from rksp.models.streaming.memory import free_memory, readable, resident_memory
from rksp.models.streaming.recording import record_model
from rksp.models.streaming.skeleton import make_skeleton, share_weights
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.weights import InitialWeights, Weights, fill_buffers

Streaming = Literal["auto", "always", "never"]
STREAMING: tuple[Streaming, ...] = ("auto", "always", "never")
_COPY = 4  # bytes per parameter of a copy of the weights; a pass in memory needs one
_COPIES = 3  # of the response: weights, update, moved weights


def should_stream(
    source: ModelSource,
    streaming: Streaming,
    max_memory: int | None,
    *,
    with_response: bool = False,
) -> bool:
    """Tell whether a model is streamed: if it must be, or would not fit in memory.

    Args:
        source: The target.
        streaming: The user's choice.
        max_memory: Bytes; default the free memory.
        with_response: Whether to count the extra memory of the response.

    Returns:
        Whether to stream.

    Raises:
        InputError: Streaming was requested but is impossible, or it was forbidden and the model
            or its response does not fit.
    """
    if streaming not in STREAMING:
        raise InputError(f"--stream {streaming!r} is not one of {', '.join(STREAMING)}.")
    can = source.construct_empty is not None
    if streaming == "always" and not can:
        raise InputError(
            f"{source.target} is a {source.kind}, whose weights cannot be drawn one by one; "
            "use --stream never."
        )
    if streaming == "always" or source.num_parameters is None:
        return streaming == "always"
    limit = free_memory() if max_memory is None else max_memory
    needed = resident_memory() + _COPY * source.num_parameters
    if streaming == "auto" and can:
        fits = response_fits(source, max_memory) if with_response else needed <= limit
        return source.num_parameters > source.max_params or not fits
    if needed > limit:
        advice = "use --stream auto" if can else "use a smaller one"
        raise InputError(
            f"{source.target} needs {readable(needed)} of memory if held whole, more than "
            f"{readable(limit)}; {advice}, or raise --max-memory."
        )
    if with_response:
        check_response_whole(source, max_memory)
    return False


def check_response_whole(source: ModelSource, max_memory: int | None) -> None:
    """Refuse a response that does not fit beside a model that is held whole.

    Raises:
        InputError: It does not fit; the message has the prediction and says what does.
    """
    if response_fits(source, max_memory):
        return
    limit = free_memory() if max_memory is None else max_memory
    forward = readable(_needed(source, copies=1))
    streams = "--stream auto may fit, " if source.construct_empty is not None else ""
    raise InputError(
        f"The response of {source.target} needs {readable(_needed(source, copies=_COPIES))} of "
        f"memory for three copies of its weights, more than {readable(limit)}; --evidence forward "
        f"needs {forward} and fits, {streams}or raise --max-memory."
    )


def response_fits(source: ModelSource, max_memory: int | None) -> bool:
    """Tell whether the response, which needs three copies of the weights, fits in memory."""
    limit = free_memory() if max_memory is None else max_memory
    return source.num_parameters is None or _needed(source, copies=_COPIES) <= limit


def _needed(source: ModelSource, *, copies: int) -> int:
    """Return the bytes this process holds with so many copies of the weights in memory."""
    there = 0 if source.model is None else 1
    return resident_memory() + (copies - there) * _COPY * definite(source.num_parameters)


def open_stream(
    source: ModelSource,
    seed: int | None = None,
    *,
    workers: int = 1,
    max_memory: int | None = None,
    poison: bool = False,
) -> Stream:
    """Open a model whose weights are loaded while it runs; use it as a context manager.

    Args:
        source: A source of a transformers model.
        seed: Seed of the random initialization, default the source's own; a checkpoint ignores it.
        workers: Threads that prepare weights; the result does not depend on their number.
        max_memory: Bytes; a pass that needs more is refused before it starts. Default the free
            memory.
        poison: Fill weights with NaN first and check that none is left: for tests.

    Returns:
        The stream.

    Raises:
        NotCovered: The model's weights cannot be drawn one by one.
        InputError: The configuration is inconsistent, or a file of the checkpoint is missing or
            damaged.
    """
    seed = source.seed if seed is None else seed
    try:
        if source.is_pretrained:
            model, _ = make_skeleton(definite(source.construct_empty), seed)
            share_weights(model)
            stored = CheckpointWeights(definite(source.folder), model)
            stored.fill_buffers(model)
            weights: Weights = stored
        else:
            model, recipes = record_model(definite(source.construct_empty), seed)
            drawn = InitialWeights(
                recipes,
                seed,
                by_counter=choose_device().type == "cuda",
                poison=poison,
            )
            fill_buffers(model, drawn)
            weights = drawn
    except refusals() as error:
        raise refused(source.target, error) from error
    return Stream(model, weights, workers=workers, max_memory=max_memory, target=source.target)
