"""Finding the residual stream: the chain of blocks whose output is the next one's input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rksp.errors import InputError, NotCovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Blocks in the order the states pass through them.

    Attributes:
        path: Module path of the list that holds them, such as `model.layers`.
        blocks: The modules; the same module may stand more than once.
    """

    path: str
    blocks: tuple[nn.Module, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.path}.{i}" for i in range(len(self.blocks)))


def first_tensor(value: object) -> Tensor | None:
    """The residual state in what a block takes or returns: the first floating tensor found."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None


def find_chains(model: nn.Module, run: Callable[[], object], *, path: str | None = None) -> tuple[Chain, ...]:
    """Runs the model once and keeps the lists whose child i hands its output to child i + 1.

    No table of names: a list counts if every child was called once, in order, with states of one
    shape, and each child's output is the next one's input, tensor for tensor. Of nested or
    competing lists the longest wins, then the shortest path; an encoder and a decoder are two.

    Args:
        run: Runs one forward pass on inputs of its own choice.
        path: The user's override: only this list.

    Raises:
        InputError: `path` names no list of blocks.
        NotCovered: There is no chain, or its width changes from block to block.
    """
    lists = {
        name: list(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 0
    }
    if path is not None:
        if path not in lists:
            known = ", ".join(sorted(lists)) or "none"
            raise InputError(f"--blocks {path!r} names no list of modules; the lists are: {known}.")
        lists = {path: lists[path]}
    calls: dict[int, list[tuple[Tensor | None, Tensor | None]]] = {}
    hooks = []

    def note(module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        entering = first_tensor(args) if args else first_tensor(kwargs)
        calls.setdefault(id(module), []).append((entering, first_tensor(output)))

    for module in {id(m): m for children in lists.values() for m in children}.values():
        hooks.append(module.register_forward_hook(note, with_kwargs=True))
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    changed_width = None
    chains = []
    for name, children in lists.items():
        states = [calls.get(id(child), []) for child in children]
        if any(len(seen) != 1 for seen in states):
            continue
        pairs = [seen[0] for seen in states]
        if any(x is None or y is None or x.dim() < 3 for x, y in pairs):
            continue
        if any(x.shape != y.shape for x, y in pairs):
            changed_width = changed_width or name
            continue
        if all(_same(y, x) for (_, y), (x, _) in zip(pairs, pairs[1:], strict=False)):
            chains.append(Chain(path=name, blocks=tuple(children)))
    chains = [chain for chain in chains if not _is_inside(chain, chains)]
    if not chains:
        if changed_width:
            raise NotCovered(
                f"The blocks of {changed_width} change the shape of their states, so there is no "
                "residual stream of constant width; rksp covers constant-width models only."
            )
        raise NotCovered(
            "No chain of blocks was found in which each block's output is the next one's input; "
            "name the list of blocks with --blocks if the model has one."
        )
    return tuple(chains)


def _same(left: Tensor, right: Tensor) -> bool:
    return left is right or (left.shape == right.shape and torch.equal(left, right))


def _is_inside(chain: Chain, chains: list[Chain]) -> bool:
    """Whether a longer chain's block contains this one, or an equal one has a shorter path."""
    for other in chains:
        if other is chain:
            continue
        inner = other.path + "."
        if chain.path.startswith(inner):
            return True
        if {id(b) for b in chain.blocks} & {id(b) for b in other.blocks}:
            key = (-len(other.blocks), len(other.path))
            if key < (-len(chain.blocks), len(chain.path)):
                return True
    # A list inside one block of another branch (experts, heads) is a chain only by accident.
    top = min(chains, key=lambda c: (c.path.count("."), -len(c.blocks)))
    return len(chain.blocks) == 1 and top is not chain
