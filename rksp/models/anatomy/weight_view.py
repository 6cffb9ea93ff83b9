"""A matrix inside of a parameter: whole, a fused one's part, one expert's, or head by head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """Rows of a weight, as a matrix `[outputs, inputs]` whichever way the parameter lies.

    The outputs of the weight come in `groups` of equal size, and of each group the matrix owns
    those from `start` to `stop`: one group for `nn.Linear` and for queries, keys and values one
    after the other, a group a head where they are interleaved (GPT-NeoX).

    Attributes:
        name: Path of the module or parameter, with the part of a fused one after a colon.
        parameter: `[outputs, inputs]`, or transposed, perhaps with an expert in front.
        bias: Of the same outputs, or None.
        heads: Heads that share the outputs evenly; 1 where there are none.
        is_transposed: The parameter is `[inputs, outputs]` (GPT-2's Conv1D).
        groups, start, stop: Which outputs.
        expert: Index in front of a parameter of three dimensions, or None.
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
        """(outputs, inputs)."""
        inputs = self.parameter.shape[-2 if self.is_transposed else -1]
        return self.groups * (self.stop - self.start), inputs

    def read(self) -> Tensor:
        """The matrix `[outputs, inputs]`, detached; a view where the layout allows one.

        Gathered from all shards if the parameter is sharded, which every rank must join.
        """
        return self._rows(gathered(self.parameter)).flatten(0, 1)

    def read_heads(self) -> Tensor:
        """`read`, head by head: `[heads, outputs of a head, inputs]`."""
        return self.read().unflatten(0, (self.heads, -1))

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Puts a matrix `[outputs, inputs]` in place."""
        whole = gathered(self.parameter)
        rows = self._rows(whole)
        rows.copy_(values.reshape(rows.shape))
        _put_back(self.parameter, whole)

    @torch.no_grad()
    def scale_heads(self, factors: Sequence[float] | Tensor) -> None:
        """Multiplies each head's outputs, bias included, by its factor `[heads]`, in place."""
        whole = gathered(self.parameter)
        rows = self._rows(whole)
        self._multiply(rows, factors)
        _put_back(self.parameter, whole)
        if self.bias is not None:
            whole = gathered(self.bias)
            self._multiply(self._bias_rows(whole).unsqueeze(-1), factors)
            _put_back(self.bias, whole)

    def _multiply(self, rows: Tensor, factors: Sequence[float] | Tensor) -> None:
        outputs = self.shape[0]
        each = torch.as_tensor(factors, dtype=rows.dtype, device=rows.device)
        rows.mul_(each.repeat_interleave(outputs // self.heads).view(*rows.shape[:2], 1))

    def _rows(self, whole: Tensor) -> Tensor:
        """A view `[groups, outputs of a group, inputs]`."""
        part = whole if self.expert is None else whole[self.expert]
        part = part.mT if self.is_transposed else part
        return part.unflatten(0, (self.groups, -1))[:, self.start : self.stop]

    def _bias_rows(self, whole: Tensor) -> Tensor:
        part = whole if self.expert is None else whole[self.expert]
        return part.unflatten(0, (self.groups, -1))[:, self.start : self.stop]


def gathered(parameter: Tensor) -> Tensor:
    """A parameter without its graph: itself, or one made of all its shards."""
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def at_least_float(tensor: Tensor) -> Tensor:
    """A tensor in float32, or in float64 if it is already."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _put_back(parameter: nn.Parameter, whole: Tensor) -> None:
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        parameter.copy_(distribute_tensor(whole, mesh, placements))
