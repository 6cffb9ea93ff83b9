"""Find the residual stream: the chain of blocks whose output is the next one's input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from rksp.ground.errors import InputError, NotCovered

# tokens: [batch, tokens, width]; streams: [batch, tokens, streams, width], several parallel
# residual streams; grid: [batch, height, width, channels]; maps: channels first, as in
# convolutional stages; rows: [tokens, width].
Kind = Literal["tokens", "streams", "grid", "maps", "rows"]
_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """Blocks in the order the states pass through them.

    Attributes:
        path: Module path of the list that holds them, such as `model.layers`.
        blocks: The modules; the same module may occur more than once (shared weights).
        names: Module path of each block; a repeated one is marked `#1`, `#2`, ….
        width: Width of the residual stream.
        kind: Layout of the states.
        entering: Key of the state in a block's arguments.
        leaving: Key of the state in a block's output.
    """

    path: str
    blocks: tuple[nn.Module, ...]
    names: tuple[str, ...]
    width: int
    kind: Kind = "tokens"
    entering: _Key = ("args", 0)
    leaving: _Key = ()

    def read_input(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor | None:
        """Return the state in the arguments of a block's call."""
        found = dict(float_tensors({"args": args, "kwargs": kwargs}))
        return found.get(self.entering, next(iter(found.values()), None))

    def read_output(self, output: object) -> Tensor | None:
        """Return the state in the output of a block."""
        found = dict(float_tensors(output))
        return found.get(self.leaving, next(iter(found.values()), None))

    def states(self, tensor: Tensor) -> Tensor:
        """Return the states `[batch, states, width]` in a tensor of this chain's layout.

        Each of several parallel streams gives its own state: a transition is what the block does to
        one stream, with the others as context.
        """
        if self.kind == "rows":
            return tensor.unsqueeze(1)
        if self.kind == "maps":
            return tensor.flatten(2).transpose(1, 2)
        return tensor.flatten(1, -2) if tensor.dim() > 3 else tensor


@dataclass(slots=True, eq=False)
class _Call:
    index: int
    entering: dict[_Key, Tensor]
    leaving: dict[_Key, Tensor]


@dataclass(slots=True)
class _Listing:
    names: list[str]
    children: list[nn.Module]
    calls: list[_Call] = field(default_factory=list)


def float_tensors(value: object, key: _Key = ()) -> Iterator[tuple[_Key, Tensor]]:
    """Yield every floating tensor in nested tuples, lists and mappings, with its key."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from float_tensors(item, (*key, name))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from float_tensors(item, (*key, index))


def first_tensor(value: object) -> Tensor | None:
    """Return the first floating tensor in the arguments or output of a module."""
    return next((tensor for _, tensor in float_tensors(value)), None)


def block_paths(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of the children of every outermost list of composite modules, in order.

    This needs no forward pass. `find_chains` runs the model and knows which of these lists pass
    their states on. For a decoder or an encoder of one stream both name the same blocks.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(p + ".") for p in found):
            continue
        children = list(module.named_children())
        if children and all(any(True for _ in child.children()) for _, child in children):
            found += [f"{name}.{child}" if name else child for child, _ in children]
    return tuple(found)


def find_chains(
    model: nn.Module, run: Callable[[], object], *, path: str | None = None
) -> tuple[Chain, ...]:
    """Run the model once and find the lists whose children pass their output on.

    There is no table of names. A list counts if each call of a child receives what the call before
    it returned: equal tensors of one shape. A list inside another chain's blocks is left out. Of
    lists that share blocks the longest is kept, then the one with the shortest path. An encoder and
    a decoder are two chains; so are the stages of a vision model that narrows its grid.

    Args:
        model: The model.
        run: Runs one forward pass on any inputs.
        path: The user's override: only this list.

    Returns:
        The chains.

    Raises:
        InputError: `path` names no list of blocks.
        NotCovered: There is no chain, or its width changes from block to block.
    """
    lists = {
        name: _Listing(list(module._modules), list(module._modules.values()))
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict) and len(module) > 0
    }
    if path is not None:
        if path not in lists:
            known = ", ".join(sorted(lists)) or "none"
            raise InputError(f"--blocks {path!r} names no list of modules; the lists are: {known}.")
        lists = {path: lists[path]}
    _record(lists, run)
    chains, changing = [], None
    for name, listing in lists.items():
        found, is_changing = _chains(name, listing)
        chains += found
        if is_changing and not found:
            changing = changing or name
    chains = chains if path is not None else _outermost(chains)
    if not chains and changing is not None:
        raise NotCovered(
            f"The blocks of {changing} change the shape of their states, or the states have width "
            "1, so there is no residual stream of constant width; rksp covers only models that "
            "have one."
        )
    if not chains:
        raise NotCovered(
            "No chain of blocks was found in which each block's output is the next one's input; "
            "name the list of blocks with --blocks if the model has one."
        )
    return tuple(chains)


def _record(lists: dict[str, _Listing], run: Callable[[], object]) -> None:
    places: dict[nn.Module, list[tuple[_Listing, int]]] = {}
    for listing in lists.values():
        for index, child in enumerate(listing.children):
            if child is not None and child not in listing.children[:index]:  # a shared child once
                places.setdefault(child, []).append((listing, index))
    pending: dict[nn.Module, list[dict[_Key, Tensor]]] = {}

    def before(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        pending.setdefault(module, []).append(dict(float_tensors({"args": args, "kwargs": kwargs})))

    def after(
        module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        entering, leaving = pending[module].pop(), dict(float_tensors(output))
        for listing, index in places[module]:
            listing.calls.append(_Call(index, entering, leaving))

    with ExitStack() as stack:
        for module in places:
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        run()


def _chains(path: str, listing: _Listing) -> tuple[list[Chain], bool]:
    """Return the chains in a list, and whether its states change shape.

    A list that narrows or widens its states has one chain for each run of at least two blocks that
    keep the shape.
    """
    calls = listing.calls
    # Several rounds of the list (a recurrent decoder) are still one chain through its calls.
    if not calls or len({call.index for call in calls}) < len(set(listing.children)) / 2:
        return [], False
    links = None
    for left, right in pairwise(calls):
        here = {
            (out, into)
            for out, y in left.leaving.items()
            for into, x in right.entering.items()
            if _same(y, x)
        }
        links = here if links is None else links & here
    first = calls[0]
    if links is None:  # one block: take its first tensors
        leaving, entering = next(iter(first.leaving), None), next(iter(first.entering), None)
        links = set() if leaving is None or entering is None else {(leaving, entering)}
    ordered = sorted(links, key=lambda link: _rank(link, first))
    if not ordered:
        return [], False
    leaving, entering = ordered[0]
    runs: list[list[_Call]] = [[]]
    shape = None
    for call in calls:
        x, y = call.entering.get(entering), call.leaving.get(leaving)
        if x is None or y is None:
            return [], False
        keeps = x.shape == y.shape and x.dim() in (2, 3, 4) and x.shape[-1] > 1
        if not keeps or x.shape != shape:
            runs.append([])
        if keeps:
            runs[-1].append(call)
        shape = y.shape
    is_changing = sum(map(bool, runs)) != 1 or max(map(len, runs)) < len(calls)
    if is_changing:
        runs = [run for run in runs if len(run) > 1]
    names = _names(path, listing, calls)
    found = []
    for run in filter(None, runs):
        x = run[0].entering[entering]
        blocks = tuple(listing.children[call.index] for call in run)
        kind = _kind(x, blocks[0])
        found.append(
            Chain(
                path=path,
                blocks=blocks,
                names=tuple(names[calls.index(call)] for call in run),
                width=x.shape[1] if kind == "maps" else x.shape[-1],
                kind=kind,
                entering=entering,
                leaving=leaving,
            )
        )
    return found, is_changing


def _rank(link: tuple[_Key, _Key], call: _Call) -> tuple[bool, int, int]:
    """Rank states before tensors that are only passed along (a mask, a bias), then by position."""
    leaving, entering = link
    y, x = call.leaving.get(leaving), call.entering.get(entering)
    passed_along = y is not None and x is y
    return (
        passed_along,
        list(call.leaving).index(leaving) if leaving in call.leaving else 99,
        list(call.entering).index(entering) if entering in call.entering else 99,
    )


def _names(path: str, listing: _Listing, calls: list[_Call]) -> tuple[str, ...]:
    counts: dict[int, int] = {}
    names = []
    prefix = f"{path}." if path else ""
    for call in calls:
        counts[call.index] = seen = counts.get(call.index, 0) + 1
        names.append(f"{prefix}{listing.names[call.index]}" + (f"#{seen}" if seen > 1 else ""))
    return tuple(names)


def _kind(x: Tensor, block: nn.Module) -> Kind:
    if x.dim() == 2:
        return "rows"
    if x.dim() == 3:
        return "tokens"
    for module in block.modules():
        if isinstance(module, nn.Conv2d) and x.shape[1] in (
            module.in_channels,
            module.out_channels,
        ):
            return "maps"
        if isinstance(module, nn.BatchNorm2d) and module.num_features == x.shape[1]:
            return "maps"
    return "grid" if x.shape[1] == x.shape[2] and _is_visual(block) else "streams"


def _is_visual(block: nn.Module) -> bool:
    name = type(block).__module__ + type(block).__name__
    return any(
        word in name.lower() for word in ("vision", "vit", "swin", "image", "hiera", "dinat")
    )


def _same(left: Tensor, right: Tensor) -> bool:
    return left is right or (
        left.shape == right.shape and left.dtype == right.dtype and torch.equal(left, right)
    )


def _outermost(chains: list[Chain]) -> list[Chain]:
    # Consecutive linear layers also pass states on, but they are inside of a block or a head.
    chains = [c for c in chains if any(list(block.children()) for block in c.blocks)]
    # Next to a real chain, a single block or a stack in a head is a chain only by accident.
    if any(len(chain.blocks) > 1 for chain in chains):
        chains = [c for c in chains if len(c.blocks) > 1 or _size(c) * 4 >= max(map(_size, chains))]
    kept: list[Chain] = []
    for chain in sorted(chains, key=lambda c: (-len(c.blocks), c.path.count("."), c.path)):
        # In this order, a list of the same blocks under another name comes after the one to keep.
        taken = {id(block) for other in kept for block in other.blocks}
        if not taken & {id(block) for block in chain.blocks}:
            kept.append(chain)
    paths = {chain.path for chain in kept}
    inner = {a for a in paths for b in paths if a != b and a.startswith(f"{b}." if b else "")}
    return [c for c in chains if c in kept and c.path not in inner]


def _size(chain: Chain) -> int:
    unique = {id(p): p.numel() for block in chain.blocks for p in block.parameters()}
    return sum(unique.values())
