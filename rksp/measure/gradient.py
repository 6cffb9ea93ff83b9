"""Measure the first gradient of a model, in memory or streamed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from torch import Tensor, nn
from torch.autograd import backward
from torch.utils.hooks import RemovableHandle

from rksp.datasets.batch import Batch, logits_of, run_pass
from rksp.documents.shown import GradientProfile, profile_of_gradient
from rksp.ground.allocator import freed_memory_returned, return_freed_memory
from rksp.ground.model import Progress, definite
from rksp.kernels.cross_entropy import cross_entropy
from rksp.models.as_found import evaluating
from rksp.models.streaming.gradients import GradientSize, size_of, taping
from rksp.models.streaming.stream import Stream

_AT_ONCE = 1 << 24  # entries of gradients after which freed memory goes back to the system


def measure_gradient(model: nn.Module, batch: Batch) -> GradientProfile:
    """Measure the first gradient alone: one forward and one backward pass.

    The gradient of each parameter is dropped as soon as it is whole, so memory holds the weights
    and a few of the largest gradients. The model is left bitwise unchanged.

    Args:
        model: In any mode; the mode is restored afterwards.
        batch: The batch of the gradient.

    Returns:
        The profile; it holds only a reason if the gradient is zero or not finite.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    with evaluating(model):
        try:
            sizes = _dropped_sizes(model, batch, params)
            if sizes is None:  # a part of the graph ran backward by itself: gradients must be kept
                backward(run_pass(model, batch).total)
                sizes = {id(p): size_of(p.grad) for p in params if p.grad is not None}
        finally:
            for p in params:
                p.grad = None
    # In the order of the parameters, whatever the order of the backward pass.
    return profile_of_gradient([sizes[id(p)] for p in params if id(p) in sizes])


def _dropped_sizes(
    model: nn.Module, batch: Batch, params: list[nn.Parameter]
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

    register: Callable[..., RemovableHandle] = Tensor.register_post_accumulate_grad_hook
    with ExitStack() as stack:
        for p in params:
            stack.callback(register(p, note).remove)
        total = run_pass(model, batch).total
        return_freed_memory()
        backward(total)
    return None if in_pieces else sizes


def measure_streamed_gradient(
    stream: Stream,
    batch: Batch,
    progress: Progress = lambda done, total, label: None,
) -> GradientProfile:
    """Measure what `measure_gradient` would give for the same weights in memory.

    The gradients stay factors of products (`rksp.models.streaming.gradients`) until the backward
    pass is over; then each is multiplied out by parts of rows.

    Args:
        stream: A closed stream, rehearsed on a batch like this.
        batch: The batch of the gradient.
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
            logits, aux = logits_of(opened.model, batch)
            loss = cross_entropy(logits, definite(batch.labels))
            run_backward: Callable[[], None] = (loss if aux is None else loss + aux).backward
            run_backward()  # a method of the tensor, so that it leaves the tape
        gradients, pool = tape.gradients, opened.supply.products
        sizes = [gradients.size(key, opened.shape(*key), pool) for key in gradients]
        served(total)
    return profile_of_gradient(sizes)
