"""Leave the product with a wide output layer unmade until something reads its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_WIDE = 1 << 13  # columns; blocks have fewer
AT_ONCE = 1 << 21  # logits, 8 MB of float32: near the cache
ROWS = 256  # of one product; with fewer, reading the weights costs more than the product
_TILE = 1024  # columns that one call makes; MKL takes a sixth longer for many more
_ALIGNED = 16  # columns; rows of any other length cost MKL a third of its speed
_aten = torch.ops.aten
# What chooses or arranges rows acts on the states as it would on the product.
_VIEWS = {_aten.detach.default, _aten.view.default, _aten.slice.Tensor, _aten.select.int}
_OF_ROWS = {*_VIEWS, _aten.index.Tensor}


class Unmade(Tensor):
    """The product of states `[..., width]` with an output layer `[columns, width]`.

    It is made when an operation reads it, and rows that are chosen from it are unmade too. So a
    loss can be computed from its factors, some rows at a time, if nothing else has looked.

    Attributes:
        factors: States, weight, and bias or None.
        shown: The product that this one is a view of, and how; None if it stands alone.
    """

    factors: tuple[Tensor, Tensor, Tensor | None]
    shown: tuple[Unmade, Callable[[Tensor], Tensor]] | None
    _made: Tensor | None

    @staticmethod
    def __new__(cls, states: Tensor, weight: Tensor, bias: Tensor | None) -> Unmade:
        """Return a tensor without numbers."""
        shape = (*states.shape[:-1], len(weight))
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=states.dtype, device=states.device)
        made.factors, made.shown, made._made = (states, weight, bias), None, None
        return made

    @property
    def is_made(self) -> bool:
        """Whether something has read it."""
        return self._made is not None or (self.shown is not None and self.shown[0].is_made)

    def made(self, *, is_written: bool = False) -> Tensor:
        """Return the numbers, without a graph.

        Args:
            is_written: Whether they will change; then so do those of the product that it shows.
        """
        if self.shown is not None and (is_written or self.shown[0].is_made):
            whole, show = self.shown
            self._made = show(whole.made(is_written=is_written))
        if self._made is None:
            with torch.no_grad():
                self._made = _product(*self.factors)
        return self._made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch states no types
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on the numbers, or on the states if it only chooses rows."""
        first = args[0] if args else None
        if isinstance(first, Unmade) and not first.is_made:
            states = _rows(func, first, args[1:])
            if states is not None:
                rows = Unmade(states, *first.factors[1:])
                if func in _VIEWS:
                    rows.shown = first, lambda whole: func(whole, *args[1:])
                return rows
        made = partial(cls.made, is_written=func._schema.is_mutable)
        args, kwargs = tree_map_only(cls, made, (args, kwargs or {}))
        return func(*args, **kwargs)


def _rows(func: object, product: Unmade, args: tuple[Any, ...]) -> Tensor | None:
    """Return the states of the rows that an operation takes; None if it reads the columns."""
    states, last = product.factors[0].detach(), product.dim() - 1
    if func is _aten.view.default:
        *lead, columns = args[0]
        is_of_rows = lead and columns == product.shape[-1]
        return states.reshape(*lead, states.shape[-1]) if is_of_rows else None
    if func not in _OF_ROWS:
        return None
    reach = args[0] if args else 0
    if func is _aten.index.Tensor:  # a mask stands for as many dimensions as it has
        masks = (i for i in args[0] if i is not None and i.dtype in (torch.bool, torch.uint8))
        reach = len(args[0]) - 1 + sum(mask.dim() - 1 for mask in masks)
    found = func(states, *args) if 0 <= reach < last else None
    return None if found is None or found.dim() < 2 else found


def _product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute `states @ weight.T + bias`, through aligned rows."""
    flat, columns = states.detach().flatten(0, -2), len(weight)
    whole = flat.new_empty(len(flat), columns)
    for given, out in zip(torch.split(flat, ROWS), torch.split(whole, ROWS), strict=True):
        out.copy_(part_of(given, weight, bias, row_buffer(given, columns)))
    return whole.view(*states.shape[:-1], columns)


def row_buffer(states: Tensor, columns: int) -> Tensor:
    """Return room for some rows of a product, each as long as aligned rows need."""
    return states.new_empty(min(ROWS, len(states)), -(-columns // _ALIGNED) * _ALIGNED)


def part_of(states: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor) -> Tensor:
    """Compute the product of at most `ROWS` states in a buffer."""
    out = buffer[: len(states), : len(weight)]
    tiles = zip(torch.split(weight, _TILE), torch.split(out, _TILE, dim=1), strict=True)
    for tile, columns in tiles:
        torch.mm(states, tile.t(), out=columns)
    return out if bias is None else out.add_(bias)


class Graph(torch.autograd.Function):
    """A function with a gradient of its own."""

    apply: ClassVar[Callable[..., Tensor]]  # torch states no types


class _Product(Graph):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.has_bias = bias is not None
        return Unmade(states.detach(), weight.detach(), None if bias is None else bias.detach())

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        wants, flat = ctx.needs_input_grad, outer.flatten(0, -2)
        return (
            outer @ weight if wants[0] else None,
            flat.t() @ states.flatten(0, -2) if wants[1] else None,
            flat.sum(0) if ctx.has_bias and wants[2] else None,
        )


class UnmadeOutputs(TorchFunctionMode):
    """Inside, linear layers with many columns leave large products on a CPU unmade."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and not kwargs and _is_wide(*args[:2]):
            states, weight, bias = (*args, None)[:3]
            product: Any = _Product.apply(states, weight, bias)
            product.factors = (states, weight, bias)
            return product
        return func(*args, **kwargs)


def _is_wide(states: Tensor, weight: Tensor) -> bool:
    is_plain = type(states) is Tensor and type(weight) in (Tensor, nn.Parameter)
    return (
        is_plain
        and states.device.type == weight.device.type == "cpu"
        and states.dtype == weight.dtype
        and states.dtype in (torch.float32, torch.float64)
        and states.dim() > 1
        and weight.shape[0] >= _WIDE
        and math.prod(states.shape[:-1]) * weight.shape[0] > AT_ONCE
        and not torch.is_autocast_enabled("cpu")
    )
