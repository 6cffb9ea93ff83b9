"""A pass without weights, which finds how a model can be streamed and what that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from rksp.ground.errors import InputError, NotCovered
from rksp.models.streaming.planning import check_response, plan_stream
from rksp.models.streaming.stream import Stream
from rksp.models.streaming.units import GRAINS

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
        InputError: The pass would not fit in memory, or the response that is to follow it.
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
    if stream.response_batch is not None:
        check_response(stream, stream.response_batch)
    return result


def _attempts(stream: Stream) -> Iterator[None]:
    """Try coarser and coarser grains: matrices by rows, whole, by block, the rest at once."""
    stream.attach("module")
    yield
    stream.tall = ()
    for grain in GRAINS:
        stream.attach(grain)
        yield
