"""Parameters by block, and sums over them that hold for sharded tensors too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate


def parameter_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters by block, and by module outside of the blocks; each once.

    A block is a child of an outermost `ModuleList` whose children have children themselves.
    """
    blocks = block_paths(model)
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner = next((path for path in blocks if name.startswith(path + ".")), None)
            groups.setdefault(owner or name.rpartition(".")[0], []).append(parameter)
    return groups


def block_paths(model: nn.Module) -> tuple[str, ...]:
    """Paths of the children of every outermost list of composite modules, in order."""
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or any(name.startswith(p + ".") for p in found):
            continue
        children = list(module.named_children())
        if children and all(any(True for _ in child.children()) for _, child in children):
            found += [f"{name}.{child}" if name else child for child, _ in children]
    return tuple(found)


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, without its graph."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sums_of_squares(groups: Sequence[Sequence[Tensor]]) -> Tensor:
    """Sum of squares of the entries of each group, `[groups]` float32, over all shards.

    One reduction and, where tensors are sharded, one communication per kind of sharding, which
    every rank must join.
    """
    sums = {}
    for index, group in enumerate(groups):
        for tensor in group:
            kind = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
            if kind not in sums:
                sums[kind] = [[] for _ in groups]
            sums[kind][index].append(local(tensor))
    total = 0.0
    for kind, parts in sums.items():
        flat = [tensor for part in parts for tensor in part]
        squares = torch.stack(torch._foreach_norm(flat, 2, dtype=torch.float32)).square()
        owner = [index for index, part in enumerate(parts) for _ in part]
        summed = squares.new_zeros(len(groups))
        summed.index_add_(0, torch.tensor(owner, device=squares.device), squares)
        total = total + _over_ranks(summed, kind)
    return total


def _over_ranks(values: Tensor, kind: tuple | None) -> Tensor:
    if kind is None:
        return values
    mesh, placements = kind
    parts = [Partial() if placement.is_shard() else Replicate() for placement in placements]
    return DTensor.from_local(values, mesh, parts).full_tensor()
