"""Define what is loaded together: a module's own weights, or a whole block if needed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Grain = Literal["module", "block", "rest"]
GRAINS: tuple[Grain, ...] = ("module", "block", "rest")
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

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the weights, each once."""
        return tuple(dict.fromkeys(slot.name for slot in self.slots))

    def place(self, tensors: Mapping[str, Tensor]) -> None:
        """Place tensors as the weights."""
        for slot in self.slots:
            parameters: dict[str, Any] = slot.module._parameters
            parameters[slot.attribute] = tensors[slot.name]

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
        Unit(path=paths[module], module=module, slots=tuple(own), size=_bytes(own))
        for module, own in grouped.items()
    )


def _outermost_entries(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [entry for child in module.children() for entry in _outermost_entries(child)]


def _bytes(slots: list[Slot]) -> int:
    return sum({slot.name: slot.size for slot in slots}.values())


def hollow(like: Tensor, device: torch.device) -> nn.Parameter:
    """Return a weight of the right shape without memory, for a rehearsal: one number repeated."""
    value = torch.full((), 1.0 if like.dim() < 2 else 0.02, dtype=like.dtype, device=device)
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

    def __torch_function__(self, func, types, args=(), kwargs=None):
        is_product = func in (F.linear, F.embedding) and len(args) > 1 and self._is_hollow(args[1])
        if is_product and func is F.linear:
            x, weight = args[0], args[1]
            return x.mean(-1, keepdim=True) * _ripple(len(weight), x.device) + x[..., :1]
        if is_product:
            return 0.01 * args[0].unsqueeze(-1) + _ripple(args[1].shape[-1], args[0].device)
        if func.__name__ not in _HARMLESS and any(
            isinstance(value, Tensor) and value.device.type == "meta" for value in args
        ):
            raise RuntimeError(f"{func.__name__} of a weight that is not loaded")
        return func(*args, **(kwargs or {}))

    def _is_hollow(self, weight: Tensor) -> bool:
        if weight.is_meta:
            return id(weight) in self.tall
        return weight.dim() == 2 and weight.stride() == (0, 0)


def _ripple(length: int, device: torch.device) -> Tensor:
    """Return entries that differ, so that no normalization divides by zero."""
    return torch.cos(torch.arange(length, device=device) * (math.pi / 7))
