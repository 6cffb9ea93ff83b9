"""Fault: one bit of a weight, a gradient or an activation flips once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError
from rksp.watch.faults.base import Fault
from rksp.watch.faults.places import striking_places, with_first_tensor
from rksp.watch.groups import local
from rksp.watch.moment import Moment

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
Where = Literal["weights", "gradients", "activations"]


class BitFlip(Fault):
    """Flips one bit of one number at one step, as a faulty multiplier or memory cell does.

    Tensor, element and bit are drawn from the seed, unless given. Weights flip after the update of
    the step and gradients after its backward pass. Activations flip in its first forward pass, in
    the output of a module that has weights of its own; the gradient passes through unchanged. In a
    sharded tensor the local part is struck, on every rank.

    Args:
        step: The step of the flip.
        where: `weights`, `gradients` or `activations`.
        bit: Counted from the least significant. In float32, 22 is the highest of the mantissa, 30
            the highest of the exponent and 31 the sign; in bfloat16 these are 6, 14 and 15.
        name: Part of the path of the parameter or module.
        element: Position in the flattened tensor.
    """

    name = "bitflip"

    def __init__(
        self,
        step: int = 10,
        where: Where = "weights",
        bit: int | None = None,
        name: str = "",
        element: int | None = None,
    ) -> None:
        if where not in ("weights", "gradients", "activations"):
            raise InputError(
                "Fault 'bitflip' needs where=weights, gradients or activations, got "
                f"where={where!r}."
            )
        if step < 0 or (bit is not None and not 0 <= bit < 64):
            raise InputError(
                f"Fault 'bitflip' needs step >= 0 and 0 <= bit < 64, got step={step}, bit={bit}."
            )
        self.step, self.where, self.bit, self.part, self.element = step, where, bit, name, element
        self.struck = ""
        self._path = ""
        self._module: nn.Module | None = None
        self._draws: list[float] = []

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Draw the tensor, the element and the bit."""
        generator = torch.Generator().manual_seed(seed)
        self._draws = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
        found = striking_places(model, self.name, self.where, self.part)
        self._path = found[int(self._draws[0] * len(found))]
        self._module = model.get_submodule(self._path) if self.where == "activations" else None

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Return a hook on the module whose activation flips."""
        if self._module is None or moment.step != self.step or self.struck:
            return ()
        pending = [True]

        def flipped(found: Tensor) -> Tensor:
            copied = found.clone()
            self._strike(copied)
            return copied

        def strike(module: nn.Module, args: tuple, output: object) -> object:
            if not pending:
                return None
            pending.clear()
            return with_first_tensor(output, flipped)

        return [self._module.register_forward_hook(strike)]

    def after_backward(self, moment: Moment) -> None:
        """Flip a bit of the gradient at the step."""
        if self.where == "gradients" and moment.step == self.step and not self.struck:
            gradient = moment.model.get_parameter(self._path).grad
            if gradient is not None:
                self._strike(gradient)

    def after_update(self, moment: Moment) -> None:
        """Flip a bit of the weight at the step."""
        if self.where == "weights" and moment.step == self.step:
            self._strike(moment.model.get_parameter(self._path))

    def _strike(self, tensor: Tensor) -> None:
        bits = 8 * tensor.element_size()
        bit = int(self._draws[2] * bits) if self.bit is None else self.bit
        held = local(tensor)
        index = int(self._draws[1] * held.numel()) if self.element is None else self.element
        flip_bit(held, index, bit)
        self.struck = f"{self._path}[{index}] bit {bit}"


@torch.no_grad()
def flip_bit(tensor: Tensor, index: int, bit: int) -> None:
    """Flip a bit of one element in place; a second flip restores it.

    Args:
        tensor: A floating-point tensor of any strides.
        index: Position in the flattened tensor.
        bit: Counted from the least significant.

    Raises:
        InputError: The tensor has no such element, or its type has no such bit.
    """
    bits = 8 * tensor.element_size()
    if not 0 <= index < tensor.numel() or not 0 <= bit < bits:
        raise InputError(
            f"A tensor of {tensor.numel()} elements of {bits} bits has no bit {bit} of element "
            f"{index}."
        )
    position = []
    for size in reversed(tensor.shape):
        index, rest = divmod(index, size)
        position.append(rest)
    place = tensor[tuple(reversed(position))].view(1)
    integer = INTEGERS[tensor.element_size()]
    mask = 1 << bit if bit < bits - 1 else -(1 << bit)
    place.view(integer).bitwise_xor_(torch.tensor(mask, dtype=integer, device=tensor.device))
