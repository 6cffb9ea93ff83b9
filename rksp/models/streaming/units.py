"""What is loaded together: a module's weights, a block, a part of a weight; products with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rksp.ground.model import definite
from rksp.models.streaming.recording import PIECE

Begin = Callable[[], Callable[[], Tensor]]  # starts to load a weight; returns the wait function
Grain = Literal["module", "block", "rest"]
GRAINS: dict[Grain, str] = {
    "module": "module by module",
    "block": "block by block",
    "rest": "block by block, the rest at once",
}
_HARMLESS = frozenset({"__get__", "size", "dim", "numel", "stride", "element_size"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slot:
    """One place of a weight: `module.attribute` holds the weight called `name`."""

    module: nn.Module
    attribute: str
    name: str
    empty: nn.Parameter

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.empty.numel() * self.empty.element_size()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """Weights that are loaded before `module` is called and dropped after it.

    Attributes:
        path: Path of the module.
        module: The module.
        slots: Places of the weights; one weight may have two.
        size: Number of bytes.
    """

    path: str
    module: nn.Module
    slots: tuple[Slot, ...]
    size: int

    @property
    def is_in_list(self) -> bool:
        """Whether the module belongs to an entry of a list of modules, as blocks do."""
        return any(part.isdigit() for part in self.path.split("."))

    def clear(self) -> None:
        """Replace the weights by placeholders without memory."""
        for slot in self.slots:
            slot.module._parameters[slot.attribute] = slot.empty


def slots_of(model: nn.Module) -> list[Slot]:
    """List every place of every parameter, under the first name of each."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        Slot(module=module, attribute=attribute, name=names[id(parameter)], empty=parameter)
        for module in model.modules()
        for attribute, parameter in module._parameters.items()
        if parameter is not None
    ]


def units_of(model: nn.Module, slots: list[Slot], grain: Grain) -> tuple[Unit, ...]:
    """Partition the slots into units.

    Args:
        model: The model.
        slots: The slots to stream.
        grain: "module" loads each module's own parameters. "block" loads each entry of the
            outermost module lists as a whole, and the rest by module. "rest" loads blocks too, and
            all of the rest for as long as the model runs.

    Returns:
        The units.
    """
    owner: dict[nn.Module, nn.Module] = {}
    if grain == "rest":
        owner = dict.fromkeys(model.modules(), model)
    if grain != "module":
        for block in _outermost_entries(model):
            owner |= dict.fromkeys(block.modules(), block)
    grouped: dict[nn.Module, list[Slot]] = {}
    for slot in slots:
        grouped.setdefault(owner.get(slot.module, slot.module), []).append(slot)
    paths = {module: path for path, module in model.named_modules()}
    return tuple(
        Unit(path=paths[module], module=module, slots=tuple(own), size=bytes_of(own))
        for module, own in grouped.items()
    )


def _outermost_entries(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [entry for child in module.children() for entry in _outermost_entries(child)]


def bytes_of(slots: list[Slot]) -> int:
    """Return the bytes of some weights; one that has several places counts once."""
    return sum({slot.name: slot.size for slot in slots}.values())


def hollow(like: Tensor) -> nn.Parameter:
    """Return a weight of the right shape without memory, for a rehearsal: one number repeated."""
    value = torch.full((), 1.0 if like.dim() < 2 else 0.02, dtype=like.dtype)
    value = value.expand(like.shape)
    if like.dim() > 2:  # products of stacks of matrices read their strides
        value = value.contiguous()
    return nn.Parameter(value, requires_grad=False)


class HollowProducts(TorchFunctionMode):
    """Replaces products with hollow weights by cheap results of the right shape.

    An operation that reads a weight without memory raises an error.

    Args:
        tall: Identities of weights that are never whole, but have products by ranges of rows.
    """

    def __init__(self, tall: Collection[int] = ()) -> None:
        super().__init__()
        self.tall = tall

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_product = func in (F.linear, F.embedding) and len(args) > 1 and self._is_hollow(args[1])
        if is_product and func is F.linear:
            few, length = args[0][..., :2], len(args[1])
            made = torch.stack([_ripple(length), torch.ones(length)])[: few.shape[-1]]
            # A product still, since the graph of the pass tells where blocks normalize.
            out = torch.addmm(torch.zeros(length), few.flatten(0, -2), made)
            return out.view(*few.shape[:-1], length)
        if is_product:
            return 0.01 * args[0].unsqueeze(-1) + _ripple(args[1].shape[-1])
        if func.__name__ not in _HARMLESS and any(
            isinstance(value, Tensor) and value.device.type == "meta" for value in args
        ):
            raise RuntimeError(f"{func.__name__} of a weight that is not loaded")
        return func(*args, **(kwargs or {}))

    def _is_hollow(self, weight: Tensor) -> bool:
        if weight.is_meta:
            return id(weight) in self.tall
        return weight.dim() == 2 and weight.stride() == (0, 0)


def _ripple(length: int) -> Tensor:
    """Return entries that differ, so that no normalization divides by zero."""
    return torch.cos(torch.arange(length) * (math.pi / 7))


SLICED_OVER = 256 * 2**20  # bytes; smaller weights are loaded whole
_PART = 128 * 2**20  # bytes of the rows that are loaded together
_ROWS = 4096  # the least number of rows, so that the product has enough parts for every thread
_ALIGNED = 64  # rows, so that no part of a product ends within a vector register
_GROUPS = 16  # groups of rows of an embedding that are loaded together

# Starts to load the entries `start … stop` of a weight's first dimension; returns the function that
# waits for them.
Read = Callable[[int, int], Callable[[], Tensor]]


def is_stack(slot: Slot) -> bool:
    """Tell whether a slot holds a fused weight of experts that is loaded one expert at a time."""
    return (
        slot.empty.dim() == 3
        and slot.size > SLICED_OVER
        and "Experts" in type(slot.module).__name__
    )


def is_tall(slot: Slot) -> bool:
    """Tell whether a slot holds a matrix or an embedding that is loaded by ranges of rows."""
    return (
        slot.empty.dim() == 2
        and slot.size > SLICED_OVER
        and isinstance(slot.module, nn.Linear | nn.Embedding)
    )


class Experts:
    """A placeholder for a weight `[experts, …]` that is read one expert at a time.

    Args:
        slot: Place of the weight.
        read: See `Read`.
        give: Returns an expert if it is to be given in another form; called with the slot, its
            index and what begins to load it.
        ahead: Tells whether to load the next expert meanwhile, since experts are read in order.
    """

    def __init__(
        self,
        slot: Slot,
        read: Read,
        give: Callable[[Slot, int, Begin], Tensor | None],
        ahead: Callable[[], bool],
    ) -> None:
        self.shape, self.dtype = slot.empty.shape, slot.empty.dtype
        self.device = torch.device("cpu")
        self._slot, self._read, self._give, self._ahead = slot, read, give, ahead
        self._coming: dict[int, Callable[[], Tensor]] = {}

    def __getitem__(self, index: int | Tensor) -> Tensor:
        index = int(index)
        given = self._give(self._slot, index, partial(self._begin, index))
        if given is not None:
            return given
        wait = self._coming.get(index) or self._begin(index)
        self.forget()
        if index + 1 < self.shape[0] and self._ahead():
            self._coming[index + 1] = self._begin(index + 1)
        return wait()

    def _begin(self, index: int) -> Callable[[], Tensor]:
        wait = self._read(index, index + 1)
        return lambda: wait()[0]

    def forget(self) -> None:
        """Drop the expert that is loaded ahead."""
        self._coming.clear()

    def __len__(self) -> int:
        return self.shape[0]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Multiply stacks (`torch.bmm`) expert by expert, as Llama 4 does."""
        if func is torch.bmm and len(args) == 2 and isinstance(args[1], cls) and not kwargs:
            x, stack = args
            return torch.stack([torch.mm(x[i], stack[i]) for i in range(len(stack))])
        raise RuntimeError(f"{func.__name__} of a stack of experts that is loaded one at a time")


class Rows:
    """A weight `[rows, width]` that is never whole.

    Args:
        like: Its parameter on the meta device.
        read: See `Read`.
    """

    def __init__(self, like: nn.Parameter, read: Read) -> None:
        self.shape, self._read = like.shape, read

    def parts(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield ranges in order with their rows; the next range is loaded meanwhile."""
        ranges = list(pairwise(part_edges(self.shape)))
        waiting: Callable[[], Tensor] | None = self._read(*ranges[0])
        for (start, stop), following in zip(ranges, [*ranges[1:], None], strict=True):
            part = definite(waiting)()
            waiting = None if following is None else self._read(*following)
            yield start, stop, part
            del part  # free its memory before another part is loaded

    def look_up(self, ids: Tensor) -> Tensor:
        """Return `weight[ids]`; only the neighborhood of each row is loaded."""
        wanted, place = torch.unique(ids, return_inverse=True)
        size = max(1, PIECE // self.shape[1])  # a random piece is drawn whole
        groups = torch.unique(wanted // size).tolist()
        found = []
        for first in range(0, len(groups), _GROUPS):
            some = groups[first : first + _GROUPS]
            ranges = [(g * size, min((g + 1) * size, self.shape[0])) for g in some]
            waiting = [self._read(start, stop) for start, stop in ranges]
            for (start, stop), wait in zip(ranges, waiting, strict=True):
                here = wanted[(wanted >= start) & (wanted < stop)]
                found.append(wait()[here - start])
        return torch.cat(found)[place]


def even_edges(count: int, parts: int) -> list[int]:
    """Return the edges of the parts of `count` rows; all parts have about the same length."""
    return [count * part // parts // _ALIGNED * _ALIGNED for part in range(parts)] + [count]


def part_edges(shape: tuple[int, ...]) -> list[int]:
    """Return the edges of the ranges of rows of a float32 matrix `[rows, width]`."""
    at_most = max(_ROWS, _PART // (4 * shape[1]))
    return even_edges(shape[0], -(-shape[0] // at_most))


def slice_size(slot: Slot) -> int:
    """Return the bytes that are loaded at a time of a slot that is not loaded whole."""
    edges = range(2) if is_stack(slot) else part_edges(slot.empty.shape)
    return slot.size // len(slot.empty) * max(b - a for a, b in pairwise(edges))


Result = TypeVar("Result")
_LARGE = 1 << 22  # entries of a weight: its product with 256 tokens takes 20 ms on one core
_NARROW = 512  # least outputs of a part
_PARTS = 16

# BLAS splits a product by its number of threads, and its rounding depends on the split. Here the
# split depends only on the weight's shape, and each part runs on one thread. For some shapes
# (2048 × 2048 with 256 tokens, for example), the whole product on one thread rounds differently, by
# 1e-6 of its size. Smaller weights are left to BLAS.


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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        self.multiply(flat(x), weight, bias, flat(out))
        return out

    def _by_rows(self, weight: Rows, x: Tensor, like: Tensor, bias: Tensor | None = None) -> Tensor:
        out = torch.empty(*x.shape[:-1], len(like), dtype=x.dtype)
        for start, stop, part in weight.parts():
            own = None if bias is None else bias[start:stop]
            self.multiply(flat(x), part, own, flat(out)[:, start:stop])
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


def flat(x: Tensor) -> Tensor:
    """View `[..., width]` as rows."""
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
