"""Record the graph of one forward pass: which operation made each tensor, and from which."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from rksp.models.anatomy.chains import Chain, float_tensors

_Keys = dict[tuple[object, ...], int]  # place in the arguments or the output → node


@dataclass(frozen=True, slots=True)
class Node:
    """One tensor of a pass.

    Attributes:
        op: Name of the ATen operation that made it, without a trailing underscore; "" for a tensor
            that was there before.
        inputs: Nodes of the tensors that it was made from, by position; −1 for weights, buffers and
            constants.
        shape: Its shape.
    """

    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]


class ForwardGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped
    """The operations of a pass, in order, and what enters and leaves the children of every list.

    It sees every operation, whatever code called it (modules, functionals, arithmetic), holds no
    tensor, and reads no value: a pass on the meta device has the same graph.

    Attributes:
        nodes: Every tensor in the order of its making; what one is made from comes before it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped
        self.nodes: list[Node] = []
        self._node_of: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        self._written: dict[int, int] = {}  # storage → the last node that was written into it
        self._calls: dict[nn.Module, list[tuple[_Keys, _Keys]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        inputs = tuple(map(self._lookup, given))
        result = func(*args, **kwargs)
        is_write = name.endswith("_") and not name.endswith("__")
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                node = self._add(leaf, name.removesuffix("_") if is_write else name, inputs)
                if is_write and (place := _storage(leaf)) is not None:
                    self._written[place] = node
        return result

    def _add(self, tensor: Tensor, op: str, inputs: tuple[int, ...]) -> int:
        self.nodes.append(Node(op, inputs, tuple(tensor.shape)))
        self._node_of[tensor] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def _lookup(self, tensor: Tensor) -> int:
        """Return a tensor's node; a view of what was written to since is a node of both."""
        node = self._node_of.get(tensor, -1)
        place = _storage(tensor) if node >= 0 and self._written else None
        written = -1 if place is None else self._written.get(place, -1)
        return self._add(tensor, "copy", (node, written)) if written > node else node

    def _seen(self, value: object) -> _Keys:
        """Return the nodes of what a block gets or returns; what was there before becomes one."""
        found = {key: (self._lookup(tensor), tensor) for key, tensor in float_tensors(value)}
        return {
            key: node if node >= 0 else self._add(tensor, "", ())
            for key, (node, tensor) in found.items()
        }

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Record the pass inside, without torch's fused encoder layers, and forget an earlier."""
        self.nodes.clear()
        self._calls.clear()
        lists = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        blocks = {c for m in model.modules() if isinstance(m, lists) for c in m.children()}
        pending: dict[nn.Module, list[_Keys]] = {}

        def before(module: nn.Module, args: object, kwargs: object) -> None:
            entering = self._seen({"args": args, "kwargs": kwargs})
            pending.setdefault(module, []).append(entering)

        def after(module: nn.Module, args: object, kwargs: object, output: object) -> None:
            call = (pending[module].pop(), self._seen(output))
            self._calls.setdefault(module, []).append(call)

        fast = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(after, with_kwargs=True).remove)
            torch.backends.mha.set_fastpath_enabled(False)
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            stack.enter_context(self)
            yield

    def ends(self, chain: Chain) -> list[tuple[int, int] | None]:
        """Return the nodes of the states that enter and leave each block of a chain.

        None stands for a block of which they were not seen.
        """
        turns: dict[nn.Module, Iterator[tuple[_Keys, _Keys]]] = {}
        found: list[tuple[int, int] | None] = []
        for block in chain.blocks:
            calls = turns.setdefault(block, iter(self._calls.get(block, ())))
            entering, leaving = next(calls, ({}, {}))
            x, y = entering.get(chain.entering, -1), leaving.get(chain.leaving, -1)
            found.append((x, y) if 0 <= x < y else None)
        return found


def _storage(tensor: Tensor) -> int | None:
    try:
        place: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return place
