"""Faults of hardware: flipped bits, wrong products of matrices, replicas that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.watch.faults.base import Fault, striking_places, with_first_tensor
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


Product = Literal["output", "input_gradient", "weight_gradient"]
_PRODUCTS = ("output", "input_gradient", "weight_gradient")


class MatmulCorruption(Fault):
    """Flips one bit of every number in one column of a product of a linear layer, from a step on.

    The defect of a multiplier persists, unlike the single flip of `bitflip`. A linear layer has
    three products a step: its output, and the gradients of its input and of its weight in the
    backward pass. The gradients were found to be more sensitive (Altenbernd et al., 2026, arXiv
    2604.00726). Layer and column are drawn from the seed. In a sharded weight's gradient the local
    part is struck, on every rank.

    Args:
        step: The first step.
        steps: The number of steps; None means the rest of the run.
        product: `output`, `input_gradient` or `weight_gradient`.
        bit: Counted from the least significant. None means the fourth bit of the exponent (26 in
            float32), which makes a number 256 times larger or smaller.
        name: Part of the path of the layer.
    """

    name = "matmul"

    def __init__(
        self,
        step: int = 10,
        steps: int | None = None,
        product: Product = "output",
        bit: int | None = None,
        name: str = "",
    ) -> None:
        if product not in _PRODUCTS:
            raise InputError(
                f"Fault 'matmul' needs product={', '.join(_PRODUCTS[:2])} or {_PRODUCTS[2]}, "
                f"got product={product!r}."
            )
        if step < 0 or (steps is not None and steps < 1) or (bit is not None and not 0 <= bit < 64):
            raise InputError(
                "Fault 'matmul' needs step >= 0, steps >= 1 and 0 <= bit < 64, got "
                f"step={step}, steps={steps}, bit={bit}."
            )
        self.step, self.product, self.bit, self.part = step, product, bit, name
        self.last = None if steps is None else step + steps - 1
        self._layer: nn.Linear | None = None
        self._draw = 0.0

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Draw the layer and the column.

        Raises:
            NotCovered: No linear layer has `name` in its path.
        """
        found = [
            module
            for path, module in model.named_modules()
            if isinstance(module, nn.Linear) and self.part in path
        ]
        if not found:
            raise NotCovered(
                f"Fault 'matmul' found no linear layer whose path contains {self.part!r}; "
                "give a part of a path that the model has."
            )
        generator = torch.Generator().manual_seed(seed)
        which, self._draw = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        self._layer = found[int(which * len(found))]

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Return a hook on the layer's output or on the gradient of its input."""
        if not self._is_on(moment.step) or self.product == "weight_gradient":
            return ()
        if self.product == "output":

            def strike(module: nn.Module, args: tuple, output: object) -> object:
                return with_first_tensor(output, self._flipped)

            return [definite(self._layer).register_forward_hook(strike)]

        def enter(module: nn.Module, args: tuple) -> tuple | None:
            if not (torch.is_grad_enabled() and args[0].requires_grad):
                return None
            x = args[0].view_as(args[0])  # a view, so that only this use's gradient is struck
            x.register_hook(self._flipped)
            return (x, *args[1:])

        return [definite(self._layer).register_forward_pre_hook(enter)]

    def after_backward(self, moment: Moment) -> None:
        """Corrupt the gradient of the layer's weight."""
        gradient = definite(self._layer).weight.grad
        if self.product == "weight_gradient" and self._is_on(moment.step) and gradient is not None:
            held = local(gradient)
            held.copy_(self._flipped(held))

    def _is_on(self, step: int) -> bool:
        return step >= self.step and (self.last is None or step <= self.last)

    def _flipped(self, product: Tensor) -> Tensor:
        """Return the product with the bit flipped in its column; gradients pass unchanged."""
        bits = 8 * product.element_size()
        mantissa = round(-math.log2(torch.finfo(product.dtype).eps))
        bit = mantissa + 3 if self.bit is None else min(self.bit, bits - 1)
        mask = 1 << bit if bit < bits - 1 else -(1 << bit)
        column = int(self._draw * product.shape[-1])
        part = product.detach()[..., column : column + 1].contiguous()
        flipped = part.view(INTEGERS[product.element_size()]).bitwise_xor(mask)
        change = torch.zeros_like(product)
        change[..., column : column + 1] = flipped.view(product.dtype) - part
        return product + change


ReplicaPlace = Literal["activations", "gradients"]


class ReplicaCorruption(Fault):
    """Multiplies numbers of one rank by 1 + scale·n, with n standard normal, from a step on.

    Activations are corrupted as they leave one module: the all-reduce spreads the error to every
    rank's gradient, and the replicas stay equal. Gradients are corrupted after the all-reduce: the
    loss looks the same and the replicas drift apart.

    Args:
        rank: The faulty rank.
        step: The first step.
        steps: The number of steps; None means the rest of the run.
        where: `activations` or `gradients`.
        scale: Size of the error relative to each number.
        name: Part of the path of the module or parameter; the fault strikes the first match. Of a
            module it strikes the first floating-point tensor in the output.
    """

    name = "replica"

    def __init__(
        self,
        rank: int = 1,
        step: int = 10,
        steps: int | None = None,
        where: ReplicaPlace = "activations",
        scale: float = 0.5,
        name: str = "",
    ) -> None:
        if where not in ("activations", "gradients"):
            raise InputError(
                f"Fault 'replica' needs where=activations or gradients, got where={where!r}."
            )
        if rank < 0 or step < 0 or not scale > 0:
            raise InputError(
                "Fault 'replica' needs rank >= 0, step >= 0 and scale > 0, got "
                f"rank={rank}, step={step}, scale={scale}."
            )
        self.rank, self.step, self.where, self.scale, self.part = rank, step, where, scale, name
        self.last = None if steps is None else step + steps - 1
        self._module: nn.Module | None = None
        self._path = ""
        self._is_faulty = False
        self._generator = torch.Generator()

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Find the place to strike on the faulty rank.

        Raises:
            NotCovered: The run has no such rank, or no path contains `name`.
        """
        group = torch.distributed
        is_parallel = group.is_available() and group.is_initialized()
        size = group.get_world_size() if is_parallel else 1
        if size < 2 or self.rank >= size:
            raise NotCovered(
                f"Fault 'replica' corrupts rank {self.rank}, and the run has {size} of them; "
                "start it under torchrun with more processes."
            )
        self._is_faulty = group.get_rank() == self.rank
        self._generator.manual_seed(seed)
        self._path = striking_places(model, self.name, self.where, self.part)[0]
        self._module = model.get_submodule(self._path) if self.where == "activations" else None

    def _is_on(self, step: int) -> bool:
        return self._is_faulty and step >= self.step and (self.last is None or step <= self.last)

    def _factors(self, like: Tensor) -> Tensor:
        noise = torch.randn(like.shape, generator=self._generator)
        return (1 + self.scale * noise).to(like)

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Return a hook on the module whose activations are corrupted."""
        if self._module is None or not self._is_on(moment.step):
            return ()

        def strike(module: nn.Module, args: tuple, output: object) -> object:
            return with_first_tensor(output, lambda found: found * self._factors(found))

        return [self._module.register_forward_hook(strike)]

    @torch.no_grad()
    def after_backward(self, moment: Moment) -> None:
        """Corrupt the gradient of the parameter."""
        if self.where != "gradients" or not self._is_on(moment.step):
            return
        gradient = moment.model.get_parameter(self._path).grad
        if gradient is not None:
            held = local(gradient)
            held.mul_(self._factors(held))
