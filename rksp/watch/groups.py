"""Group parameters by block, sum over shards, and gather from the processes of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from rksp.models.anatomy.chains import block_paths
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.weight_view import Matrix
from rksp.watch.moment import Moment

_NORMS = "gradient norms"
_Kind = tuple[DeviceMesh, tuple[Placement, ...]]  # of sharding


def parameter_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Group trainable parameters by block (`block_paths`) or outer module; each occurs once."""
    blocks = block_paths(model)
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner = next((path for path in blocks if name.startswith(path + ".")), None)
            groups.setdefault(owner or name.rpartition(".")[0], []).append(parameter)
    return groups


def block_matrices(model: nn.Module) -> tuple[Matrix, ...]:
    """Return the matrices of attention and of feed-forward layers, with fused projections split."""
    anatomy = find_anatomy(model)
    return (*anatomy.attention_matrices(), *anatomy.feed_forward)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, without its graph."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def world_size() -> int:
    """Return the number of processes of the run, 1 without `torch.distributed`."""
    group = torch.distributed
    return group.get_world_size() if group.is_available() and group.is_initialized() else 1


def is_first_rank() -> bool:
    """Tell whether this is the first of all processes, or the only one."""
    return world_size() == 1 or torch.distributed.get_rank() == 0


def mean_over_ranks(value: float) -> float:
    """Return the mean over all processes, so that every rank takes the same decisions."""
    if world_size() == 1:
        return value
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    total = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(total)
    return float(total) / world_size()


def of_all_ranks(own: Tensor) -> Tensor:
    """Gather a tensor of the same shape from every rank, `[ranks, ...]`; every rank must join."""
    parts = [torch.empty_like(own) for _ in range(world_size())]
    torch.distributed.all_gather(parts, own.contiguous())
    return torch.stack(parts)


def gradient_norms(moment: Moment) -> dict[Tensor, Tensor]:
    """Return the norm of this rank's part of every gradient, float64, computed once per moment."""
    if _NORMS not in moment.shared:
        grads = [p.grad for p in moment.model.parameters() if p.grad is not None]
        norms = torch.stack(list(norms_of(grads))).double() if grads else torch.zeros(0)
        for index in (~norms.isfinite()).nonzero().flatten().tolist():
            norms[index] = _held(grads[index]).double().norm()  # a square may overflow float32
        moment.shared[_NORMS] = dict(zip(grads, norms.unbind(), strict=True))
    found: dict[Tensor, Tensor] = moment.shared[_NORMS]
    return found


def sums_of_squares(
    groups: Sequence[Sequence[Tensor]], norms: Mapping[Tensor, Tensor] | None = None
) -> Tensor:
    """Sum the squares of the entries of each group, `[groups]`, over all shards.

    This takes one communication per kind of sharding, which every rank must join.

    Args:
        groups: Tensors, which may be sharded.
        norms: Norms of the tensors, as `gradient_norms` returns them; None computes them.

    Returns:
        The sums, `[groups]`.
    """
    if norms is None:
        flat = [tensor for group in groups for tensor in group]
        norms = dict(zip(flat, norms_of(flat), strict=True))
    sums: dict[_Kind | None, tuple[list[int], list[Tensor]]] = {}
    for index, group in enumerate(groups):
        for tensor in group:
            kind = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
            owners, parts = sums.setdefault(kind, ([], []))
            owners.append(index)
            parts.append(norms[tensor])
    totals = []
    for kind, (owners, parts) in sums.items():
        squares = torch.stack(parts).square()
        summed = squares.new_zeros(len(groups))
        summed.index_add_(0, torch.tensor(owners, device=squares.device), squares)
        if kind is not None:
            parted = [Partial() if p.is_shard() else Replicate() for p in kind[1]]
            summed = DTensor.from_local(summed, kind[0], parted).full_tensor()
        totals.append(summed)
    return reduce(torch.add, totals)


def norms_of(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Compute Euclidean norms of local parts, at least float32, in one reduction."""
    parts = [_held(tensor) for tensor in tensors]
    kinds = {part.dtype for part in parts}
    wide = torch.float64 if torch.float64 in kinds else torch.float32
    return torch._foreach_norm(parts, 2, dtype=wide) if parts else []


def _held(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor that this rank holds; of a sparse one, those it stores."""
    return local(tensor.coalesce().values() if tensor.is_sparse else tensor)
