"""Gather the root mean squares of weights while a pass loads them."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from rksp.models.streaming.products import run_all

_CHUNK = 1 << 20  # entries summed in float32 at once: a relative error of 1e-6


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
