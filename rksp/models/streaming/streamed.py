"""What a pass over a model asks of the stream that feeds it, if one does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from rksp.models.anatomy.chains import Chain, find_chains
from rksp.models.streaming.rehearsal import rehearse
from rksp.models.streaming.stream import Stream


def stream_of(model: nn.Module) -> Stream | None:
    """The stream that feeds a model, if there is one."""
    return getattr(model, "_rksp_stream", None)


def locate_chains(
    model: nn.Module, run: Callable[[], object], path: str | None, sequences: int, states: int
) -> tuple[Chain, ...]:
    """`find_chains`, by a rehearsal where the model is streamed.

    Args:
        sequences, states: Of the pass that will follow, to predict its memory.
    """
    stream = stream_of(model)
    find = lambda: find_chains(model, run, path=path)
    if stream is None:
        return find()
    width = getattr(getattr(model, "config", None), "hidden_size", 0)
    return rehearse(stream, find, sequences=sequences, entries=states * int(width or 0))


def computing(model: nn.Module) -> AbstractContextManager[object]:
    """What a pass of a streamed model runs inside of; nothing for one in memory."""
    stream = stream_of(model)
    return nullcontext() if stream is None else stream.computing()
