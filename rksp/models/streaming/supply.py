"""The weights of a stream: begun ahead of use, waited for, noted as they pass by."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.models.streaming.scales import Scales
from rksp.models.streaming.units import Read, Slot, Unit, hollow
from rksp.models.streaming.weights import Weights

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


Jobs = Callable[[str, Tensor], list[Callable[[], object]]]


class Loading:
    """Tensors by name; jobs in a pool fill them, and a GPU gets them from pinned memory.

    Args:
        shapes: Objects with the shape and dtype of each tensor, by name.
        jobs: Returns the jobs that fill a tensor.
        in_place: Tells for which tensors the jobs run on the GPU itself, on demand.
        pool: Runs the other jobs.
        device: Device of the finished tensors.
        buffers: Provides the tensors on the CPU.
    """

    def __init__(
        self,
        shapes: Mapping[str, Tensor],
        jobs: Jobs,
        *,
        in_place: Callable[[str], bool],
        pool: Executor,
        device: torch.device,
        buffers: Buffers,
    ) -> None:
        self.device = device
        self.size = sum(like.numel() * like.element_size() for like in shapes.values())
        on_gpu = device.type == "cuda"
        self._jobs = jobs
        self._later = {name: like for name, like in shapes.items() if on_gpu and in_place(name)}
        self._here = {
            # torch itself keeps pinned memory for reuse.
            name: _pinned(like) if on_gpu else buffers.empty(like)
            for name, like in shapes.items()
            if name not in self._later
        }
        self._there: dict[str, Tensor] | None = None if on_gpu else self._here
        self._copies = torch.cuda.Stream(device) if on_gpu and self._here else None
        self._futures: list[Future] = [
            pool.submit(job) for name, tensor in self._here.items() for job in jobs(name, tensor)
        ]

    def send(self) -> None:
        """Start the copy to the GPU, parallel to its computation, once all jobs are done."""
        if self._there is None and all(future.done() for future in self._futures):
            with torch.cuda.stream(self._copies):
                self._there = {
                    name: tensor.to(self.device, non_blocking=True)
                    for name, tensor in self._here.items()
                }

    def wait(self) -> dict[str, Tensor]:
        """Return the filled tensors; raise the error of a failed job."""
        for future in self._futures:
            future.result()
        self.send()
        if self._copies is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(self._copies)
            for tensor in definite(self._there).values():
                tensor.record_stream(computing)
        return definite(self._there) | self._drawn_there()

    def _drawn_there(self) -> dict[str, Tensor]:
        drawn = {}
        for name, like in self._later.items():
            drawn[name] = torch.empty(like.shape, dtype=like.dtype, device=self.device)
            for job in self._jobs(name, drawn[name]):
                job()
        return drawn

    def drop(self) -> None:
        """Cancel the jobs that have not started."""
        for future in self._futures:
            future.cancel()


def _pinned(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def choose_device() -> torch.device:
    """Return the GPU if torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move a skeleton's buffers to a device; its parameters have no storage."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)


def moved(value: Any, device: torch.device) -> Any:
    """Move the tensors in nested tuples, lists and dictionaries to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    return value


class Supply:
    """Gives units their weights, in the order that a rehearsal found.

    Args:
        weights: Where the weights come from.
        device: Where they are used.
        workers: Threads that prepare weights, and as many for products.

    Attributes:
        order: Units as they are used in a pass.
        ahead: Bytes that may be prepared ahead of use.
        held: Units whose modules hold their weights now.
        is_hollow: Weights have no memory, as in a rehearsal.
        buffers: Memory that goes from one weight to the next.
        scales: Facts of the weights that have passed by.
        products: Threads that multiply.
        loads: Threads that prepare weights.
    """

    def __init__(self, weights: Weights, device: torch.device, workers: int) -> None:
        self.weights, self.device = weights, device
        self.order: list[Unit] = []
        self.ahead = 0
        self.held: list[Unit] = []
        self.is_hollow = False
        self.buffers, self.scales = Buffers(), Scales()
        self.products = ThreadPoolExecutor(workers, "rksp-products")
        self.loads = ThreadPoolExecutor(workers, "rksp-weights")
        self._coming: dict[Unit, Loading] = {}
        self._place = 0

    def fetch(self, unit: Unit) -> dict[str, Tensor]:
        """Return the weights of a unit; start loading those of the units after it."""
        loading = self._coming.pop(unit, None) or self._load(unit)
        self._advance(unit)
        tensors = loading.wait()
        for name, tensor in tensors.items():
            self.scales.note(name, 0, tensor, self.products)
        return tensors

    def begin(self, slot: Slot) -> Callable[[], Tensor]:
        """Start to load one whole weight; return the function that waits for it."""
        loading = self._loading({slot.name: slot.empty}, self.weights.jobs)
        return lambda: loading.wait()[slot.name]

    def read(self, slot: Slot) -> Read:
        """Return the function that loads parts of a slot's weight."""

        def read(start: int, stop: int) -> Callable[[], Tensor]:
            shape, dtype = (stop - start, *slot.empty.shape[1:]), slot.empty.dtype
            like = torch.empty(shape, dtype=dtype, device="meta")
            if self.is_hollow:  # an expert, because tall weights are never read in rehearsal
                like = torch.empty(shape[1:], dtype=dtype, device="meta")
                return lambda: hollow(like, self.device).unsqueeze(0)
            loading = self._loading(
                {slot.name: like},
                lambda name, out: self.weights.rows(name, start, stop, out),
            )

            def wait() -> Tensor:
                part = loading.wait()[slot.name]
                self.scales.note(slot.name, start, part, self.products)
                return part

            return wait

        return read

    def _load(self, unit: Unit) -> Loading:
        return self._loading({slot.name: slot.empty for slot in unit.slots}, self.weights.jobs)

    def _loading(self, shapes: dict[str, Tensor], jobs: Jobs) -> Loading:
        return Loading(
            shapes,
            jobs,
            in_place=self.weights.is_drawn_in_place,
            pool=self.loads,
            device=self.device,
            buffers=self.buffers,
        )

    def _advance(self, unit: Unit) -> None:
        """Start loading what comes next, as far as memory is reserved for it."""
        try:
            self._place = self.order.index(unit, self._place) + 1
        except ValueError:
            return  # a module that the rehearsal did not reach, such as another expert
        window, size = [], 0
        for coming in self.order[self._place :]:
            size += coming.size
            if size > self.ahead:
                break
            window.append(coming)
        for stale in set(self._coming) - set(window):
            self._coming.pop(stale).drop()
        for coming in window:
            if coming not in self._coming and coming not in self.held:
                self._coming[coming] = self._load(coming)
        for loading in self._coming.values():
            loading.send()

    def rest(self) -> None:
        """Drop what was prepared; the next pass starts anew."""
        for loading in self._coming.values():
            loading.drop()
        self._coming.clear()
        self.buffers.trim()
        self._place = 0

    def take_over(self, other: Supply, units: dict[str, Unit]) -> None:
        """Continue where another supply stopped, with own units by path."""
        self.order = [units[unit.path] for unit in other.order]
        self.ahead, self.scales = other.ahead, other.scales
        self.buffers.limit = other.buffers.limit

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self.loads, self.products):
            pool.shutdown(wait=True, cancel_futures=True)
