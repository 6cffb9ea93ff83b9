"""The weights of a stream: begun ahead of use, waited for, noted as they pass by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rksp.models.streaming.buffers import Buffers
from rksp.models.streaming.loading import Jobs, Loading
from rksp.models.streaming.pools import CountingPool
from rksp.models.streaming.scales import Scales
from rksp.models.streaming.slices import Read
from rksp.models.streaming.units import Slot, Unit, hollow
from rksp.models.streaming.weights import Weights


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
        self.products = CountingPool(workers, "rksp-products")
        self.loads = CountingPool(workers, "rksp-weights")
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
