"""Keep gradients of weights that are never whole in memory as factors of products.

The gradient of a linear layer is `leftᵀ @ right`, the outputs' gradients `[tokens, rows]` times the
inputs `[tokens, columns]`. With 256 tokens the factors of a matrix of 4096 × 11008 take 15 MB and
their product 180 MB. So the factors are kept, and rows of the product are computed on demand.
Nothing is quantized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

Key = tuple[str, int | None]  # a weight by name, or one expert of a stack
_CHUNK = 1 << 20  # entries computed at once by one thread: 4 MB, near the cache


@dataclass(slots=True)
class _Parts:
    """The terms of the sum that is a weight's gradient."""

    products: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    dense: Tensor | None = None


class Gradients:
    """The gradients of one backward pass, by weight."""

    def __init__(self) -> None:
        self._parts: dict[Key, _Parts] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._parts

    def __iter__(self) -> Iterator[Key]:
        return iter(self._parts)

    @property
    def names(self) -> set[str]:
        """Names of the weights with a gradient, in whole or in part."""
        return {name for name, _ in self._parts}

    @property
    def size(self) -> int:
        """Number of bytes held; inputs that several weights share count once."""
        held: dict[int, int] = {}
        for parts in self._parts.values():
            pairs = [tensor for pair in (*parts.products, *parts.rows) for tensor in pair]
            for tensor in pairs if parts.dense is None else [*pairs, parts.dense]:
                held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return sum(held.values())

    def add_product(self, key: Key, left: Tensor, right: Tensor) -> None:
        """Add `leftᵀ @ right`, from `[tokens, rows]` and `[tokens, columns]`."""
        self._of(key).products.append((left, right))

    def add_rows(self, key: Key, ids: Tensor, values: Tensor) -> None:
        """Add `values` `[tokens, columns]` to the rows `ids` `[tokens]`."""
        self._of(key).rows.append((ids, values))

    def add_dense(self, key: Key, value: Tensor) -> None:
        """Add a whole gradient."""
        parts = self._of(key)
        parts.dense = value.clone() if parts.dense is None else parts.dense.add_(value)

    def _of(self, key: Key) -> _Parts:
        return self._parts.setdefault(key, _Parts())

    @torch.no_grad()
    def fill(self, key: Key, start: int, stop: int, out: Tensor) -> Tensor:
        """Write the rows `start … stop` of a gradient to `out`, which has their shape."""
        parts = self._parts[key]
        first = True
        for left, right in parts.products:
            if first:
                torch.mm(left[:, start:stop].T, right, out=out)
                first = False
            else:
                out.addmm_(left[:, start:stop].T, right)
        if first:
            out.zero_()
        if parts.dense is not None:
            out.add_(parts.dense if out.dim() == 0 else parts.dense[start:stop])
        for ids, values in parts.rows:
            here = (ids >= start) & (ids < stop)
            out.index_add_(0, ids[here] - start, values[here])
        return out

    @torch.no_grad()
    def squared_norm(self, key: Key, shape: tuple[int, ...]) -> float:
        """Compute the sum of the squared entries of a gradient of this shape.

        For products alone, ‖LᵀR‖² = Σ (LLᵀ) ∘ (RRᵀ) needs no entry of the gradient.
        """
        parts = self._parts[key]
        if parts.products and not parts.rows and parts.dense is None:
            left = torch.cat([left for left, _ in parts.products])
            right = torch.cat([right for _, right in parts.products])
            both = (left @ left.T).double() * (right @ right.T).double()
            return max(0.0, float(both.sum()))
        total = 0.0
        for start, stop in chunks(shape):
            out = torch.empty(part_shape(shape, start, stop))
            total += float(self.fill(key, start, stop, out).double().square().sum())
        return total


def chunks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return ranges of rows with about a million entries each; one range for a scalar."""
    if not shape:
        return [(0, 1)]
    width = max(1, torch.Size(shape[1:]).numel())
    size = max(1, _CHUNK // width)
    return list(pairwise([*range(0, shape[0], size), shape[0]])) if shape[0] else []


def part_shape(shape: tuple[int, ...], start: int, stop: int) -> tuple[int, ...]:
    """Return the shape of a range of rows."""
    return (stop - start, *shape[1:]) if shape else ()
