"""Memory for weights, used again: fresh pages cost a third of the numbers that fill them."""

from __future__ import annotations

import mmap
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALL = 1 << 20  # bytes; torch's own allocator is as good below
_LOOSE = 1.1  # how much longer than what is asked for a block may be


@dataclass(slots=True)
class _Block:
    memory: mmap.mmap
    view: weakref.ref  # of what the tensor in it stands on; dead once no tensor does

    @property
    def is_idle(self) -> bool:
        return self.view() is None


class Buffers:
    """Empty tensors on the CPU, in memory that earlier ones have left.

    A block is used again only after the last tensor that shares it is gone, so nothing that a
    model keeps can change under it. What is held, idle blocks included, never exceeds `limit`
    unless the tensors in use do.

    Attributes:
        limit: Bytes that blocks may take, idle ones included; 0 keeps no idle block.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._blocks: list[_Block] = []

    @property
    def held(self) -> int:
        """Bytes of all blocks."""
        return sum(len(block.memory) for block in self._blocks)

    def empty(self, like: Tensor) -> Tensor:
        """A tensor of the shape and dtype of `like`, its values undefined."""
        size = like.numel() * like.element_size()
        if size < _SMALL:
            return torch.empty(like.shape, dtype=like.dtype)
        block = self._take(size)
        view = memoryview(block.memory)
        block.view = weakref.ref(view)
        return torch.frombuffer(view, dtype=like.dtype, count=like.numel()).view(like.shape)

    def _take(self, size: int) -> _Block:
        for block in self._blocks:
            if block.is_idle and size <= len(block.memory) <= _LOOSE * size:
                return block
        self.trim(self.limit - size)
        memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._blocks.append(_Block(memory=memory, view=lambda: None))
        return self._blocks[-1]

    def trim(self, limit: int = 0) -> None:
        """Gives idle blocks back, the oldest first, until no more than `limit` bytes are held."""
        excess = self.held - limit
        for block in list(self._blocks):
            if excess <= 0:
                return
            if block.is_idle:
                excess -= len(block.memory)
                self._blocks.remove(block)
