"""The matrices inside of blocks, one by one: fused projections taken apart, heads in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from rksp.monitors.groups import block_paths

_ROUTERS = ("gate", "router", "wg")  # `gate_proj` of a gated feed-forward layer is none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrix:
    """A matrix that is a parameter or a part of one.

    Attributes:
        parameter: Two-dimensional, or three-dimensional with an expert in front.
        axis: Along which `rows` count: 0 for `nn.Linear` (outputs first), 1 for GPT-2's layout.
        rows: Positions along it, `[outputs]` int64, heads one after the other; None for all.
        expert: Index in front; None if there is none.
    """

    parameter: Tensor
    axis: int = 0
    rows: Tensor | None = None
    expert: int | None = None

    def read(self) -> Tensor:
        """A copy in at least float32, gathered from all shards, outputs along `axis`."""
        whole = _gathered(self.parameter)
        part = whole if self.expert is None else whole[self.expert]
        part = part.clone() if self.rows is None else part.index_select(self.axis, self.rows)
        return part if part.dtype == torch.float64 else part.float()

    def write(self, value: Tensor) -> None:
        """Puts a matrix of the same shape in place."""
        whole = _gathered(self.parameter)
        part = whole if self.expert is None else whole[self.expert]
        if self.rows is None:
            part.copy_(value)
        else:
            part.index_copy_(self.axis, self.rows, value.to(part))
        if whole is not self.parameter:
            mesh, placements = self.parameter.device_mesh, self.parameter.placements
            self.parameter.copy_(distribute_tensor(whole, mesh, placements))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """A linear map, or the part of a fused one that makes queries, keys or values.

    Attributes:
        module: Holds `weight` and perhaps `bias`.
        axis: Of the outputs in `weight`.
        rows: Outputs that are meant, heads one after the other; None for all.
    """

    module: nn.Module
    axis: int
    rows: Tensor | None = None

    @property
    def outputs(self) -> int:
        return self.module.weight.shape[self.axis] if self.rows is None else len(self.rows)

    @property
    def matrix(self) -> Matrix:
        return Matrix(parameter=self.module.weight, axis=self.axis, rows=self.rows)

    def scale_heads(self, factors: Tensor) -> None:
        """Multiplies each head's outputs, bias included, by its factor `[heads]`."""
        per_row = factors.repeat_interleave(self.outputs // len(factors))
        weight = self.matrix.read()
        shaped = per_row.to(weight).unsqueeze(1 - self.axis)
        self.matrix.write(weight * shaped)
        bias = getattr(self.module, "bias", None)
        if isinstance(bias, Tensor):
            place = Matrix(parameter=bias, rows=self.rows)
            place.write(place.read() * per_row.to(weight))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attention:
    """One attention layer.

    Attributes:
        path, module: The layer; its attention call runs inside the module.
        heads, key_heads: Of queries, and of keys and values.
        query, key, value: Its projections.
        output: None where it stands outside of the module.
        is_normed: Whether it normalizes queries or keys.
    """

    path: str
    module: nn.Module
    heads: int
    key_heads: int
    query: Projection
    key: Projection
    value: Projection
    output: Projection | None
    is_normed: bool


def find_attention(model: nn.Module) -> list[Attention]:
    """Every attention layer whose layout is known.

    Separate projections (`q_proj`, `query`, …), thirds of a fused one (`qkv`, GPT-2's `c_attn`),
    queries, keys and values of different sizes one after the other (Phi-3's `qkv_proj`), and
    blocks of [q, k, v] per head (GPT-NeoX, BLOOM). Latent attention is not among them.
    """
    found = []
    for path, module in model.named_modules():
        layout = _layout(module)
        heads = _heads(module)
        if layout is None or not heads or layout[0].outputs % heads:
            continue
        query, key, value = layout
        width = query.outputs // heads
        if key.outputs % width or value.outputs % (key.outputs // width):
            continue
        found.append(
            Attention(
                path=path,
                module=module,
                heads=heads,
                key_heads=key.outputs // width,
                query=query,
                key=key,
                value=value,
                output=_output(module),
                is_normed=any(
                    not isinstance(getattr(module, name, nn.Identity()), nn.Identity)
                    for name in ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "qk_norm")
                ),
            )
        )
    return found


_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
_OUTPUTS = ("o_proj", "out_proj", "out", "c_proj", "dense", "out_lin")


def _layout(module: nn.Module) -> tuple[Projection, Projection, Projection] | None:
    for names in _SEPARATE:
        parts = [_projection(module, name) for name in names]
        if None not in parts:
            return tuple(parts)
    for name in ("qkv", "c_attn"):
        if (fused := _projection(module, name)) and fused.outputs % 3 == 0:
            third = fused.outputs // 3
            return _pieces(fused, [torch.arange(i * third, (i + 1) * third) for i in range(3)])
    config = getattr(module, "config", None)
    if fused := _projection(module, "qkv_proj"):
        heads, groups = _heads(module), getattr(config, "num_key_value_heads", None)
        if heads and groups and fused.outputs % (heads + 2 * groups) == 0:
            width = fused.outputs // (heads + 2 * groups)
            sizes = [heads * width, groups * width, groups * width]
            return _pieces(fused, list(torch.arange(fused.outputs).split(sizes)))
    kind = getattr(config, "model_type", None)
    if (fused := _projection(module, "query_key_value")) and kind in ("gpt_neox", "bloom"):
        rows = torch.arange(fused.outputs).view(_heads(module), 3, -1)
        return _pieces(fused, [rows[:, i].flatten() for i in range(3)])
    return None


def _projection(module: nn.Module, name: str) -> Projection | None:
    linear = getattr(module, name, None)
    weight = getattr(linear, "weight", None)
    if not isinstance(linear, nn.Module) or not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    return Projection(module=linear, axis=0 if isinstance(linear, nn.Linear) else 1)


def _pieces(fused: Projection, rows: Sequence[Tensor]) -> tuple[Projection, ...]:
    device = fused.module.weight.device
    return tuple(
        Projection(module=fused.module, axis=fused.axis, rows=part.to(device)) for part in rows
    )


def _output(module: nn.Module) -> Projection | None:
    found = (_projection(module, name) for name in _OUTPUTS)
    return next((projection for projection in found if projection), None)


def _heads(module: nn.Module) -> int | None:
    config = getattr(module, "config", None)
    named = (
        getattr(config, "num_attention_heads", None),
        getattr(module, "num_heads", None),
        getattr(module, "num_attention_heads", None),
        getattr(module, "n_heads", None),
    )
    return next((count for count in named if isinstance(count, int)), None)


def find_routers(model: nn.Module) -> list[nn.Module]:
    """Routers in the blocks: modules of a router's name with a weight `[experts, width]`."""
    return [
        module
        for path in block_paths(model)
        for name, module in model.get_submodule(path).named_modules()
        if name.rsplit(".", 1)[-1] in _ROUTERS
        and isinstance(weight := getattr(module, "weight", None), Tensor)
        and weight.dim() == 2
        and weight.shape[0] < weight.shape[1]
    ]


def attention_matrices(model: nn.Module) -> list[Matrix]:
    """Every layer's query, key, value and output matrix."""
    return [
        projection.matrix
        for layer in find_attention(model)
        for projection in (layer.query, layer.key, layer.value, layer.output)
        if projection is not None
    ]


def feed_forward_matrices(model: nn.Module) -> list[Matrix]:
    """All other matrices of the blocks, routers and embeddings left out, experts one by one."""
    taken = {id(matrix.parameter) for matrix in attention_matrices(model)}
    taken |= {id(router.weight) for router in find_routers(model)}
    found: list[Matrix] = []
    for path in block_paths(model):
        for module in model.get_submodule(path).modules():
            if isinstance(module, nn.Embedding):
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in taken:
                    taken.add(id(parameter))
                    found += _matrices(module, name, parameter)
    return found


def _matrices(module: nn.Module, name: str, parameter: Tensor) -> list[Matrix]:
    """A parameter's matrices; gate and up of a fused gated layer are two."""
    axis = 0 if isinstance(module, nn.Linear) or parameter.dim() == 3 else 1
    if parameter.dim() == 2:
        return [Matrix(parameter=parameter, axis=axis)] if name == "weight" else []
    down = getattr(module, "down_proj", None)
    if (
        parameter.dim() != 3
        or not isinstance(down, Tensor)
        or name
        not in (
            "gate_up_proj",
            "down_proj",
        )
    ):
        return []
    parts: list[Tensor | None] = [None]
    if name == "gate_up_proj":
        if parameter.shape[1] != 2 * down.shape[2]:
            return []  # a layout of its own, such as interleaved columns
        parts = list(torch.arange(parameter.shape[1], device=parameter.device).chunk(2))
    return [
        Matrix(parameter=parameter, rows=rows, expert=expert)
        for expert in range(len(parameter))
        for rows in parts
    ]


def _gathered(parameter: Tensor) -> Tensor:
    """The whole tensor: itself, or one made of all its shards, which every rank must join."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
