"""The weights of a stream: begun ahead of use, waited for, noted as they pass by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from rksp.models.streaming.units import Read, Slot, Unit, hollow, run_all
from rksp.models.streaming.weights import Weights

_CHUNK = 1 << 20  # entries summed in float32 at once: a relative error of 1e-6


Jobs = Callable[[str, Tensor], list[Callable[[], object]]]


class Loading:
    """Tensors by name, which jobs in a pool fill.

    Args:
        shapes: Objects with the shape and dtype of each tensor, by name.
        jobs: Returns the jobs that fill a tensor.
        pool: Runs the jobs.
    """

    def __init__(self, shapes: Mapping[str, Tensor], jobs: Jobs, pool: Executor) -> None:
        self.size = sum(like.numel() * like.element_size() for like in shapes.values())
        self._tensors = {n: torch.empty_like(like, device="cpu") for n, like in shapes.items()}
        self._futures: list[Future[object]] = [
            pool.submit(job) for name, tensor in self._tensors.items() for job in jobs(name, tensor)
        ]

    def wait(self) -> dict[str, Tensor]:
        """Return the filled tensors; raise the error of a failed job."""
        for future in self._futures:
            future.result()
        return self._tensors

    def drop(self) -> None:
        """Cancel the jobs that have not started."""
        for future in self._futures:
            future.cancel()


class Scales:
    """Root mean squares of the matrices that a pass has loaded.

    For an embedding that is never whole, only the neighborhood of looked-up rows counts.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, tuple[float, int]]] = {}

    def note(self, name: str, start: int, part: Tensor, pool: ThreadPoolExecutor) -> None:
        """Add the rows of a weight from `start` on; each range counts once."""
        if part.dim() == 2 and part.is_floating_point():
            ranges = self._sums.setdefault(name, {})
            if start not in ranges:
                ranges[start] = square_sum(part, pool), part.numel()

    def rms(self, name: str) -> float | None:
        """Return the RMS of the entries seen; None if none were."""
        ranges = self._sums.get(name)
        if not ranges:
            return None
        return math.sqrt(sum(s for s, _ in ranges.values()) / sum(n for _, n in ranges.values()))


def root_mean_square(weight: Tensor) -> float:
    """Compute the RMS of all entries of a weight."""
    return math.sqrt(square_sum(weight.detach()) / weight.numel())


def as_real(values: Tensor) -> Tensor:
    """View a complex tensor as pairs of real numbers, as torch's optimizers do; others as is."""
    return torch.view_as_real(values) if values.is_complex() else values


@torch.no_grad()
def square_sum(weight: Tensor, pool: ThreadPoolExecutor | None = None) -> float:
    """Compute the sum of squares; it is the same for any number of threads."""
    flat = as_real(weight).reshape(-1)
    edges = pairwise([*range(0, len(flat), _CHUNK), len(flat)])

    def part(start: int, stop: int) -> float:
        values = flat[start:stop].float()
        return float(values.dot(values))

    jobs = [partial(part, *ends) for ends in edges]
    return sum([job() for job in jobs] if pool is None else run_all(pool, jobs))


class Supply:
    """Gives units their weights, in the order that a rehearsal found.

    Args:
        weights: Where the weights come from.
        workers: Threads that prepare weights, and as many for products.

    Attributes:
        order: Units as they are used in a pass.
        ahead: Bytes that may be prepared ahead of use.
        held: Units whose modules hold their weights now.
        is_hollow: Weights have no memory, as in a rehearsal.
        scales: Facts of the weights that have passed by.
        products: Threads that multiply.
        loads: Threads that prepare weights.
    """

    products: ThreadPoolExecutor
    loads: ThreadPoolExecutor

    def __init__(self, weights: Weights, workers: int) -> None:
        self.weights, self.workers = weights, workers
        self.order: list[Unit] = []
        self.ahead = 0
        self.held: list[Unit] = []
        self.is_hollow = False
        self.scales = Scales()
        self._coming: dict[Unit, Loading] = {}
        self._place = 0

    def open(self) -> None:
        """Start the threads."""
        self.products = ThreadPoolExecutor(self.workers, "rksp-products")
        self.loads = ThreadPoolExecutor(self.workers, "rksp-weights")

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
        loading = Loading({slot.name: slot.empty}, self.weights.jobs, self.loads)
        return lambda: loading.wait()[slot.name]

    def read(self, slot: Slot) -> Read:
        """Return the function that loads parts of a slot's weight."""

        def read(start: int, stop: int) -> Callable[[], Tensor]:
            shape, dtype = (stop - start, *slot.empty.shape[1:]), slot.empty.dtype
            like = torch.empty(shape, dtype=dtype, device="meta")
            if self.is_hollow:  # an expert, because tall weights are never read in rehearsal
                like = torch.empty(shape[1:], dtype=dtype, device="meta")
                return lambda: hollow(like).unsqueeze(0)
            jobs = partial(self.weights.rows, slot.name, start, stop)
            loading = Loading({slot.name: like}, lambda _, out: jobs(out), self.loads)

            def wait() -> Tensor:
                part = loading.wait()[slot.name]
                self.scales.note(slot.name, start, part, self.products)
                return part

            return wait

        return read

    def _load(self, unit: Unit) -> Loading:
        shapes: dict[str, Tensor] = {slot.name: slot.empty for slot in unit.slots}
        return Loading(shapes, self.weights.jobs, self.loads)

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

    def rest(self) -> None:
        """Drop what was prepared; the next pass starts anew."""
        for loading in self._coming.values():
            loading.drop()
        self._coming.clear()
        self._place = 0

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self.loads, self.products):
            pool.shutdown(wait=True, cancel_futures=True)
