"""Load weights that are too large to hold by one expert, or one range of rows, at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.models.streaming.seeds import PIECE
from rksp.models.streaming.units import Slot

SLICED_OVER = 256 * 2**20  # bytes; smaller weights are loaded whole
_PART = 128 * 2**20  # bytes of the rows that are loaded together
_ROWS = 4096  # the least number of rows, so that the product has enough parts for every thread
_ALIGNED = 64  # rows, so that no part of a product ends within a vector register
_GROUPS = 16  # groups of rows of an embedding that are loaded together

# Starts to load the entries `start … stop` of a weight's first dimension; returns the function that
# waits for them.
Read = Callable[[int, int], Callable[[], Tensor]]


def is_stack(slot: Slot) -> bool:
    """Tell whether a slot holds a fused weight of experts that is loaded one expert at a time."""
    return (
        slot.empty.dim() == 3
        and slot.size > SLICED_OVER
        and "Experts" in type(slot.module).__name__
    )


def is_tall(slot: Slot) -> bool:
    """Tell whether a slot holds a matrix or an embedding that is loaded by ranges of rows."""
    return (
        slot.empty.dim() == 2
        and slot.size > SLICED_OVER
        and isinstance(slot.module, nn.Linear | nn.Embedding)
    )


class Experts:
    """A placeholder for a weight `[experts, …]` that is read one expert at a time.

    Args:
        slot: Place of the weight.
        read: See `Read`.
        device: Device of the experts.
        give: Returns an expert in place of `read`, or None; called with the slot, its index and
            `read`.
        ahead: Tells whether to load the next expert meanwhile, since experts are read in order.
    """

    def __init__(
        self,
        slot: Slot,
        read: Read,
        device: torch.device,
        give: Callable[[Slot, int, Read], Tensor | None],
        ahead: Callable[[], bool],
    ) -> None:
        self.shape, self.dtype, self.device = slot.empty.shape, slot.empty.dtype, device
        self._slot, self._read, self._give, self._ahead = slot, read, give, ahead
        self._next: tuple[int, Callable[[], Tensor]] | None = None

    def __getitem__(self, index: int | Tensor) -> Tensor:
        index = int(index)
        given = self._give(self._slot, index, self._read)
        if given is not None:
            return given
        if self._next is not None and self._next[0] == index:
            wait = self._next[1]
        else:
            wait = self._read(index, index + 1)
        self._next = None
        if index + 1 < self.shape[0] and self._ahead():
            self._next = (index + 1, self._read(index + 1, index + 2))
        return wait()[0]

    def forget(self) -> None:
        """Drop the expert that is loaded ahead."""
        self._next = None

    def __len__(self) -> int:
        return self.shape[0]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Multiply stacks (`torch.bmm`) expert by expert, as Llama 4 does."""
        if func is torch.bmm and len(args) == 2 and isinstance(args[1], cls) and not kwargs:
            x, stack = args
            return torch.stack([torch.mm(x[i], stack[i]) for i in range(len(stack))])
        raise RuntimeError(f"{func.__name__} of a stack of experts that is loaded one at a time")


class Rows:
    """A weight `[rows, width]` that is never whole.

    Args:
        like: Its parameter on the meta device.
        read: See `Read`.
    """

    def __init__(self, like: nn.Parameter, read: Read) -> None:
        self.shape, self._read = like.shape, read

    def parts(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield ranges in order with their rows; the next range is loaded meanwhile."""
        ranges = list(pairwise(part_edges(self.shape)))
        waiting: Callable[[], Tensor] | None = self._read(*ranges[0])
        for (start, stop), following in zip(ranges, [*ranges[1:], None], strict=True):
            part = definite(waiting)()
            waiting = None if following is None else self._read(*following)
            yield start, stop, part
            del part  # free its memory before another part is loaded

    def look_up(self, ids: Tensor) -> Tensor:
        """Return `weight[ids]`; only the neighborhood of each row is loaded."""
        wanted, place = ids.unique(return_inverse=True)
        size = max(1, PIECE // self.shape[1])  # a random piece is drawn whole
        groups = (wanted // size).unique().tolist()
        found = []
        for first in range(0, len(groups), _GROUPS):
            some = groups[first : first + _GROUPS]
            ranges = [(g * size, min((g + 1) * size, self.shape[0])) for g in some]
            waiting = [self._read(start, stop) for start, stop in ranges]
            for (start, stop), wait in zip(ranges, waiting, strict=True):
                here = wanted[(wanted >= start) & (wanted < stop)]
                found.append(wait()[here - start])
        return torch.cat(found)[place]


def even_edges(count: int, parts: int) -> list[int]:
    """Return the edges of the parts of `count` rows; all parts have about the same length."""
    return [count * part // parts // _ALIGNED * _ALIGNED for part in range(parts)] + [count]


def part_edges(shape: tuple[int, ...]) -> list[int]:
    """Return the edges of the ranges of rows of a float32 matrix `[rows, width]`."""
    at_most = max(_ROWS, _PART // (4 * shape[1]))
    return even_edges(shape[0], -(-shape[0] // at_most))


def slice_size(slot: Slot) -> int:
    """Return the bytes that are loaded at a time of a slot that is not loaded whole."""
    edges = range(2) if is_stack(slot) else part_edges(slot.empty.shape)
    return slot.size // len(slot.empty) * max(b - a for a, b in pairwise(edges))
