"""Decide whether to stream a model, and open a stream for a source."""

from __future__ import annotations

from typing import Literal

from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.models.refusals import refusals, refused
from rksp.models.source import ModelSource
from rksp.models.streaming.memory import free_memory, readable, resident_memory
from rksp.models.streaming.recording import make_skeleton, record_model, share_weights
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.supply import choose_device
from rksp.models.streaming.weights import CheckpointWeights, InitialWeights, Weights, fill_buffers

Streaming = Literal["auto", "always", "never"]
STREAMING: tuple[Streaming, ...] = ("auto", "always", "never")
_COPY = 4  # bytes per parameter of a copy of the weights
# Copies in memory at once; of the gradient's, one is that of the largest weights alone.
_COPIES = {"forward": 1, "gradient": 2, "response": 3}
_OF_WHAT = {
    "gradient": "for its weights and the largest gradients",
    "response": "for three copies of its weights",
}
_BELOW = {"gradient": "forward", "response": "gradient"}


def should_stream(
    source: ModelSource, streaming: Streaming, max_memory: int | None, evidence: str = "forward"
) -> bool:
    """Tell whether a model is streamed: if it must be, or would not fit in memory.

    Args:
        source: The target.
        streaming: The user's choice.
        max_memory: Bytes; default the free memory.
        evidence: What is measured of it: "forward", "gradient" or "response".

    Returns:
        Whether to stream.

    Raises:
        InputError: Streaming was requested but is impossible, or it was forbidden and what is
            measured does not fit.
    """
    if streaming not in STREAMING:
        raise InputError(f"--stream {streaming!r} is not one of {', '.join(STREAMING)}.")
    can = source.construct_empty is not None
    if streaming == "always" and not can:
        raise InputError(
            f"{source.target} is a {source.kind}, whose weights cannot be drawn one by one; "
            "use --stream never."
        )
    if evidence == "response":
        if streaming == "always":
            raise InputError(
                "--evidence response moves weights that are held in memory, and --stream always "
                "drops them; use --evidence gradient, or --stream auto."
            )
        check_whole(source, max_memory, evidence)
        return False
    if streaming == "always" or source.num_parameters is None:
        return streaming == "always"
    is_large = source.num_parameters > source.max_params
    if streaming == "auto" and can:
        return is_large or not fits(source, max_memory, evidence)
    check_whole(source, max_memory, evidence)
    return False


def check_whole(source: ModelSource, max_memory: int | None, evidence: str) -> None:
    """Refuse what does not fit in memory with the whole model.

    Raises:
        InputError: It does not fit; the message has the prediction and says what does.
    """
    if fits(source, max_memory, evidence):
        return
    limit = readable(free_memory() if max_memory is None else max_memory)
    needed, can = readable(_needed(source, evidence)), source.construct_empty is not None
    if evidence in _BELOW and fits(source, max_memory, _BELOW[evidence]):
        raise InputError(
            f"The {evidence} of {source.target} needs {needed} of memory {_OF_WHAT[evidence]}, "
            f"more than {limit}; --evidence {_BELOW[evidence]} needs "
            f"{readable(_needed(source, _BELOW[evidence]))} and fits, or raise --max-memory."
        )
    advice = "use --stream auto" if can else "use a smaller one"
    if evidence == "response":
        advice = "use --evidence gradient"
    raise InputError(
        f"{source.target} needs {needed} of memory if held whole, more than {limit}; {advice}, or "
        "raise --max-memory."
    )


def fits(source: ModelSource, max_memory: int | None, evidence: str) -> bool:
    """Tell whether what is measured fits in memory with the whole model."""
    limit = free_memory() if max_memory is None else max_memory
    return source.num_parameters is None or _needed(source, evidence) <= limit


def _needed(source: ModelSource, evidence: str) -> int:
    """Return the bytes this process holds with the whole model in memory."""
    copies = _COPIES[evidence] - (source.model is not None)
    return resident_memory() + copies * _COPY * definite(source.num_parameters)


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
