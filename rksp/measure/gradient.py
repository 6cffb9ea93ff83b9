"""Measure the first gradient of a model, in memory or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from rksp.datasets.batch import Batch, logits_of, run_pass
from rksp.ground.allocator import freed_memory_returned, return_freed_memory
from rksp.ground.model import Progress, definite
from rksp.kernels.cross_entropy import cross_entropy
from rksp.measure.response_profile import ResponseProfile, profile_of_gradient
from rksp.models.as_found import evaluating
from rksp.models.streaming.gradients import GradientSize, size_of, taping
from rksp.models.streaming.stream import Stream

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
            run_pass(model, same).total.backward()
            sizes = {id(p): size_of(p.grad) for p in params if p.grad is not None}
    # In the order of the parameters, whatever the order of the backward pass.
    return profile_of_gradient([sizes[id(p)] for p in params if id(p) in sizes], 3 * share)


def _dropped_sizes(
    model: nn.Module, same: Batch, params: list[nn.Parameter]
) -> dict[int, GradientSize] | None:
    """Return the size of each parameter's gradient; None if one came in several pieces."""
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

    hooks = [p.register_post_accumulate_grad_hook(note) for p in params]
    try:
        total = run_pass(model, same).total
        return_freed_memory()
        total.backward()
    finally:
        for hook in hooks:
            hook.remove()
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
            (loss if aux is None else loss + aux).backward()
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
