"""Reuse memory for weights: fresh pages cost a third of the time of filling them."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_SMALL = 1 << 20  # bytes; below this size torch's own allocator is as good
_LOOSE = 1.1  # a reused block may be longer than the request by this factor


@dataclass(slots=True)
class _Block:
    memory: mmap.mmap
    view: Callable[
        [], Any
    ]  # of the memoryview that tensors keep alive; dead once no tensor uses it

    @property
    def is_idle(self) -> bool:
        """Whether no tensor uses the block."""
        return self.view() is None


class Buffers:
    """Empty tensors on the CPU, in memory that earlier tensors have released.

    A block is reused only after the last tensor that shares it is gone, so nothing that a model
    keeps can change. The total size, idle blocks included, never exceeds `limit` unless the tensors
    in use do.

    Attributes:
        limit: Bytes that blocks may take, idle ones included; 0 keeps no idle block.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._blocks: list[_Block] = []

    @property
    def held(self) -> int:
        """Number of bytes of all blocks."""
        return sum(len(block.memory) for block in self._blocks)

    def empty(self, like: Tensor) -> Tensor:
        """Return a tensor of the shape and dtype of `like`, with undefined values."""
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
        """Release idle blocks, the oldest first, until at most `limit` bytes are held."""
        excess = self.held - limit
        for block in list(self._blocks):
            if excess <= 0:
                return
            if block.is_idle:
                excess -= len(block.memory)
                self._blocks.remove(block)
