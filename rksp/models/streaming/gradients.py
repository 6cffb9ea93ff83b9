"""Run a backward pass through a streamed model, and keep its gradients as factors of products.

The gradient of a linear layer is `leftᵀ @ right`, the outputs' gradients `[tokens, rows]` times the
inputs `[tokens, columns]`. With 256 tokens the factors of a matrix of 4096 × 11008 take 15 MB and
their product 180 MB. So the factors are kept, and rows of the product are computed on demand.

Custom functions compute products with a weight. They keep the input and load the weight again in
the backward pass. Every other use of a weight is left to torch, whose graph keeps those:
vectors and other small weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rksp.ground.model import definite
from rksp.kernels.wide_output import Graph
from rksp.models.streaming.units import Begin, Rows, flat, multiply_back, run_all
from rksp.models.streaming.weights import as_real, square_sum

if TYPE_CHECKING:
    from rksp.models.streaming.stream import Stream
    from rksp.models.streaming.units import Begin, Slot

GradientSize = tuple[float, float, int]  # sum of squares, largest absolute entry, entries
Key = tuple[str, int | None]  # a weight by name, or one expert of a stack
_CHUNK = 1 << 20  # entries computed at once by one thread: 4 MB, near the cache


@dataclass(slots=True)
class _Parts:
    products: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    dense: Tensor | None = None


class Gradients:
    """The gradients of one backward pass, by weight."""

    def __init__(self) -> None:
        self._parts: defaultdict[Key, _Parts] = defaultdict(_Parts)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._parts)

    def add_product(self, key: Key, left: Tensor, right: Tensor) -> None:
        """Add `leftᵀ @ right`, from `[tokens, rows]` and `[tokens, columns]`."""
        self._parts[key].products.append((left, right))

    def add_rows(self, key: Key, ids: Tensor, values: Tensor) -> None:
        """Add `values` `[tokens, columns]` to the rows `ids` `[tokens]`."""
        self._parts[key].rows.append((ids, values))

    def add_dense(self, key: Key, value: Tensor) -> None:
        """Add a whole gradient."""
        parts = self._parts[key]
        parts.dense = value.clone() if parts.dense is None else parts.dense.add_(value)

    @torch.no_grad()
    def fill(self, key: Key, start: int, stop: int, out: Tensor) -> Tensor:
        """Write the rows `start … stop` of a gradient to `out`, which has their shape."""
        parts = self._parts[key]
        for place, (left, right) in enumerate(parts.products):
            out.addmm_(left[:, start:stop].T, right, beta=min(place, 1))  # the first sets it
        if not parts.products:
            out.zero_()
        if parts.dense is not None:
            out.add_(parts.dense if out.dim() == 0 else parts.dense[start:stop])
        for ids, values in parts.rows:
            here = (ids >= start) & (ids < stop)
            out.index_add_(0, ids[here] - start, values[here])
        return out

    @torch.no_grad()
    def size(self, key: Key, shape: tuple[int, ...], pool: ThreadPoolExecutor) -> GradientSize:
        """Measure a gradient of this shape, on the threads of a pool."""

        def part(start: int, stop: int) -> tuple[float, float]:
            out = torch.empty((stop - start, *shape[1:]) if shape else ())
            return size_of(self.fill(key, start, stop, out))[:2]

        found = run_all(pool, [partial(part, *edges) for edges in chunks(shape)])
        squares, largest = zip(*found, strict=True)
        return sum(squares), max(largest), math.prod(shape)


@torch.no_grad()
def size_of(gradient: Tensor) -> GradientSize:
    """Measure a whole gradient."""
    low, high = torch.aminmax(as_real(gradient))  # makes no second tensor
    return square_sum(gradient), max(-float(low), float(high)), gradient.numel()


def chunks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return ranges of rows with about a million entries each; one range for a scalar."""
    if not shape:
        return [(0, 1)]
    width = max(1, math.prod(shape[1:]))
    size = max(1, _CHUNK // width)
    return list(pairwise([*range(0, shape[0], size), shape[0]])) if shape[0] else []


_MARK = "_rksp_lent"
_PRODUCTS = frozenset({torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__})


@dataclass(frozen=True, slots=True, eq=False)
class _Lent:
    """A weight that is loaded for now."""

    key: Key
    value: Tensor  # its placeholder if it is multiplied by ranges of rows
    begin: Begin | None  # loads it again; None if it is loaded by ranges of rows


class Tape(TorchFunctionMode):
    """Collects the gradients of a streamed model's weights in a forward and backward pass.

    Args:
        stream: A rehearsed stream.
        served: Called with the bytes of weights that were used.

    Attributes:
        gradients: Gradients of every weight that took part.
    """

    def __init__(self, stream: Stream, served: Callable[[int], None]) -> None:
        super().__init__()
        self.stream, self.served, self.gradients = stream, served, Gradients()
        self._anchor = torch.zeros((), requires_grad=True)  # makes outputs require gradients
        self._tall = {id(slot.empty): slot for slot in stream.tall}
        self._products: list[Begin | None] = []  # in the order of the forward pass
        self._coming: dict[int, Callable[[], Tensor]] = {}

    def lend(self, slot: Slot, value: Tensor) -> Tensor:
        """Return a weight that was just loaded, in the form that the model uses."""
        self.served(slot.size)
        return self._lend(slot, None, value, partial(self.stream.supply.begin, slot))

    def expert(self, slot: Slot, index: int, begin: Begin) -> Tensor:
        """Return one expert of a stack."""
        return self._lend(slot, index, begin()(), begin)

    def _lend(self, slot: Slot, index: int | None, value: Tensor, begin: Begin) -> Tensor:
        if not slot.empty.requires_grad:
            return value
        key = slot.name, index
        lent = _Borrow.apply(self._anchor, value, lambda grad: self.gradients.add_dense(key, grad))
        setattr(lent, _MARK, _Lent(key, value, begin))
        return lent

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = None
        if func is F.linear:
            found = self._linear(*args, **kwargs)
        elif func in _PRODUCTS and len(args) == 2 and not kwargs:
            found = self._multiply(args[0], args[1])
        elif func is torch.addmm and len(args) == 3 and not kwargs:
            found = self._multiply(args[1], args[2], args[0])
        elif func is F.embedding:
            found = self._look_up(*args, **kwargs)
        return func(*args, **kwargs) if found is None else found

    def _lent(self, weight: Tensor) -> _Lent | None:
        slot = self._tall.get(id(weight))
        if slot is None:
            return getattr(weight, _MARK, None)
        return _Lent((slot.name, None), slot.empty, None) if weight.requires_grad else None

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        lent = self._lent(weight)
        if lent is None or input.dim() < 2:
            return None
        return _Product.apply(input, self._anchor, bias, lent, self, False)

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """Compute `x @ weight` for a weight `[inputs, outputs]`, as in GPT-2 and some experts."""
        lent = self._lent(weight)
        if lent is None or weight.dim() != 2 or x.dim() < 2 or lent.begin is None:
            return None
        return _Product.apply(x, self._anchor, bias, lent, self, True)

    def _look_up(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor | None:
        lent = self._lent(weight)
        if lent is None or max_norm is not None or scale_grad_by_freq:
            return None
        return _LookUp.apply(self._anchor, input, lent, padding_idx, self)

    def number(self, begin: Begin | None) -> int:
        """Add a product and return its number in the forward pass."""
        self._products.append(begin)
        return len(self._products) - 1

    def load(self, number: int) -> Tensor:
        """Load the weight of a product again; start loading that of the product before it."""
        wait = self._coming.pop(number, None) or definite(self._products[number])()
        earlier = number - 1
        if earlier >= 0 and self._products[earlier] is not None and self.stream.supply.ahead:
            self._coming[earlier] = definite(self._products[earlier])()
        return wait()


class _Borrow(Graph):
    """A weight as a tensor that requires a gradient, which goes to `sink` and not to a leaf."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, sink: Callable[[Tensor], None]) -> Tensor:
        ctx.sink = sink
        return value.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.sink(grad)
        return None, None, None


class _Product(Graph):
    """`x @ weightᵀ + bias`, or without the transposition; the weight is not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        bias: Tensor | None,
        lent: _Lent,
        tape: Tape,
        is_transposed: bool,
    ) -> Tensor:
        ctx.key, ctx.tape, ctx.is_transposed = lent.key, tape, is_transposed
        ctx.number = tape.number(lent.begin)
        ctx.tall = lent.value if lent.begin is None else None
        ctx.save_for_backward(x)
        if not is_transposed:
            out = F.linear(x, lent.value, bias)
            # The model may change its product in place, but no view that comes from here.
            return out.clone() if out._is_view() else out
        out = x @ lent.value
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        outer, inner = flat(grad), flat(x.detach())
        pair = (inner, outer) if ctx.is_transposed else (outer, inner)
        ctx.tape.gradients.add_product(ctx.key, *pair)
        stream = ctx.tape.stream
        grad_x = grad_bias = None
        if ctx.needs_input_grad[0] and ctx.tall is not None:
            grad_x = _multiply_back_by_rows(stream, outer, ctx.tall).view(x.shape)
        elif ctx.needs_input_grad[0]:
            weight = ctx.tape.load(ctx.number)
            weight = weight.T if ctx.is_transposed else weight
            grad_x = multiply_back(stream.supply.products, outer, weight).view(x.shape)
            ctx.tape.served(2 * weight.numel() * weight.element_size())
        if ctx.needs_input_grad[2]:
            grad_bias = outer.sum(0)
        return grad_x, None, grad_bias, None, None, None


class _LookUp(Graph):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, ids: Tensor, lent: _Lent, padding: int | None, tape: Tape
    ) -> Tensor:
        ctx.ids, ctx.key, ctx.padding, ctx.tape = ids, lent.key, padding, tape
        return F.embedding(ids, lent.value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ids, values = ctx.ids.flatten(), flat(grad)
        if ctx.padding is not None:
            counts = ids != ctx.padding
            ids, values = ids[counts], values[counts]
        ctx.tape.gradients.add_rows(ctx.key, ids, values)
        return None, None, None, None, None


def _multiply_back_by_rows(stream: Stream, x: Tensor, empty: Tensor) -> Tensor:
    slot = next(slot for slot in stream.tall if slot.empty is empty)
    total = torch.zeros(len(x), empty.shape[1])
    for start, stop, part in Rows(slot.empty, stream.supply.read(slot)).parts():
        total += multiply_back(stream.supply.products, x[:, start:stop], part)
    return total


@contextmanager
def taping(stream: Stream, served: Callable[[int], None] = lambda size: None) -> Iterator[Tape]:
    """Run the passes of a streamed model inside under a tape."""
    tape = Tape(stream, served)
    with torch.enable_grad(), stream.visited_by(tape), stream.computing(), tape:
        yield tape
