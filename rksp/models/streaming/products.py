"""Multiply by large weights on several threads, with the same bits for any number of them.

BLAS splits a product by its number of threads, and its rounding depends on the split. Here the
split depends only on the weight's shape, and each part runs on one thread. For some shapes
(2048 × 2048 with 256 tokens, for example), the whole product on one thread rounds differently, by
1e-6 of its size. Smaller weights are left to BLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rksp.models.streaming.units import Rows, even_edges

Result = TypeVar("Result")
_LARGE = 1 << 22  # entries of a weight: its product with 256 tokens takes 20 ms on one core
_NARROW = 512  # least outputs of a part
_PARTS = 16


def bounds(outputs: int) -> list[int]:
    """Return the edges of the parts of a product with this many outputs."""
    return even_edges(outputs, max(1, min(_PARTS, outputs // _NARROW)))


class SplitProducts(TorchFunctionMode):
    """Splits `F.linear` with a large weight over the threads of a pool.

    Args:
        pool: The threads; not the pool that fills weights, whose jobs would delay the products.
        tall: Weights that are loaded by ranges of rows, by the identity of their placeholder.

    Attributes:
        flops: FLOP of the split products, because counters see only their own thread.
    """

    def __init__(self, pool: ThreadPoolExecutor, tall: Mapping[int, Rows] | None = None) -> None:
        super().__init__()
        self.pool, self.tall, self.flops = pool, tall or {}, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear and not kwargs:
            if id(args[1]) in self.tall:
                return self._by_rows(self.tall[id(args[1])], *args)
            if _is_worth_it(*args):
                return self._linear(*args)
        if func is F.embedding and id(args[1]) in self.tall:
            return self.tall[id(args[1])].look_up(args[0])
        return func(*args, **kwargs)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.empty(*x.shape[:-1], len(weight), dtype=x.dtype)
        self.multiply(_flat(x), weight, bias, _flat(out))
        return out

    def _by_rows(self, weight: Rows, x: Tensor, like: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.empty(*x.shape[:-1], len(like), dtype=x.dtype)
        for start, stop, part in weight.parts():
            own = None if bias is None else bias[start:stop]
            self.multiply(_flat(x), part, own, _flat(out)[:, start:stop])
            del part  # before the next one takes its memory
        return out

    def multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Write `x @ weight.T + bias` to `out` `[tokens, outputs]`."""

        @torch.no_grad()  # new threads have gradients on
        def part(start: int, stop: int) -> None:
            here, own = out[:, start:stop], weight[start:stop].T
            if bias is None:
                torch.mm(x, own, out=here)
            else:
                torch.addmm(bias[start:stop], x, own, out=here)

        self.flops += 2 * len(x) * weight.numel()
        run_all(self.pool, [partial(part, *edges) for edges in pairwise(bounds(len(weight)))])


def multiply_back(pool: ThreadPoolExecutor, x: Tensor, weight: Tensor) -> Tensor:
    """Compute `x @ weight` for `[tokens, outputs]` and `[outputs, inputs]`, on a pool's threads."""
    out = torch.empty(len(x), weight.shape[1], dtype=x.dtype)

    @torch.no_grad()
    def part(start: int, stop: int) -> None:
        torch.mm(x, weight[:, start:stop], out=out[:, start:stop])

    run_all(pool, [partial(part, *edges) for edges in pairwise(bounds(weight.shape[1]))])
    return out


def run_all(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Result]]) -> list[Result]:
    """Run jobs on the threads of a pool; return their results in order, or raise their error."""
    jobs = list(jobs)
    if len(jobs) == 1:
        return [jobs[0]()]
    return [future.result() for future in [pool.submit(job) for job in jobs]]


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _is_worth_it(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return (
        isinstance(weight, Tensor)
        and weight.dim() == 2
        and weight.numel() >= _LARGE
        and len(weight) >= 2 * _NARROW
        and weight.device.type == x.device.type == "cpu"
        and weight.dtype == x.dtype
        and not torch.is_grad_enabled()
    )
