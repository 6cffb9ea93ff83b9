"""View a matrix inside of a parameter: whole, part of a fused one, one expert's, or by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """Rows of a weight, as a matrix `[outputs, inputs]` for either layout of the parameter.

    The outputs of the weight come in `groups` of equal size, and the matrix owns those from `start`
    to `stop` of each group. There is one group for `nn.Linear` and for stacked queries, keys and
    values, and one group per head if these are interleaved (GPT-NeoX).

    Attributes:
        name: Path of the module or parameter, with the part of a fused one after a colon.
        parameter: `[outputs, inputs]` or its transpose, with a leading expert dimension for stacks.
        bias: Bias of the same outputs, or None.
        heads: Heads that share the outputs evenly; 1 without heads.
        is_transposed: Whether the parameter is `[inputs, outputs]` (GPT-2's Conv1D).
        groups: Number of groups of outputs.
        start: First output of each group.
        stop: Output after the last of each group.
        expert: Index into a parameter of three dimensions, or None.
    """

    name: str
    parameter: nn.Parameter
    bias: nn.Parameter | None = None
    heads: int = 1
    is_transposed: bool = False
    groups: int = 1
    start: int = 0
    stop: int
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and inputs."""
        inputs = self.parameter.shape[-2 if self.is_transposed else -1]
        return self.groups * (self.stop - self.start), inputs

    def read(self) -> Tensor:
        """Return the matrix `[outputs, inputs]`, detached; a view if the layout allows one.

        A sharded parameter is gathered from all shards, which every rank must join.
        """
        return self._rows(gathered(self.parameter)).flatten(0, 1)

    def read_heads(self) -> Tensor:
        """Return `read` split by head: `[heads, outputs of a head, inputs]`."""
        return torch.unflatten(self.read(), 0, (self.heads, -1))

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Write a matrix `[outputs, inputs]` into the parameter."""
        whole = gathered(self.parameter)
        rows = self._rows(whole)
        rows.copy_(values.reshape(rows.shape))
        _put_back(self.parameter, whole)

    @torch.no_grad()
    def scale_heads(self, factors: Sequence[float] | Tensor) -> None:
        """Multiply each head's outputs, bias included, by its factor `[heads]`, in place."""
        for parameter in (self.parameter, self.bias):
            if parameter is not None:
                whole = gathered(parameter)
                rows = self._rows(whole)
                each = torch.as_tensor(factors, dtype=rows.dtype, device=rows.device)
                each = each.repeat_interleave(self.shape[0] // self.heads)
                rows.mul_(each.view(*rows.shape[:2], *(1 for _ in rows.shape[2:])))
                _put_back(parameter, whole)

    def _rows(self, whole: Tensor) -> Tensor:
        """Return a view `[groups, outputs of a group, inputs]`, of a bias without the inputs."""
        part = whole if self.expert is None else whole[self.expert]
        part = part.mT if self.is_transposed and part.dim() > 1 else part
        return torch.unflatten(part, 0, (self.groups, -1))[:, self.start : self.stop]


def gathered(parameter: Tensor) -> Tensor:
    """Return a parameter without its graph, gathered from all its shards if it is sharded."""
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def at_least_float(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or unchanged if it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _put_back(parameter: nn.Parameter, whole: Tensor) -> None:
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        parameter.copy_(distribute_tensor(whole, mesh, placements))
