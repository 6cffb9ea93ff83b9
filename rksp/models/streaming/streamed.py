"""Let a pass over a model use the stream that feeds it, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import nn

from rksp.kernels.wide_output import UnmadeOutputs
from rksp.models.anatomy.chains import Chain, find_chains
from rksp.models.streaming.rehearsal import rehearse
from rksp.models.streaming.stream import Stream


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
