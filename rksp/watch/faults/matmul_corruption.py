"""Fault: a matrix multiplier flips a bit in one column of its products, at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.model import definite
from rksp.watch.faults.base import Fault
from rksp.watch.faults.bit_flip import INTEGERS
from rksp.watch.faults.places import with_first_tensor
from rksp.watch.groups import local
from rksp.watch.moment import Moment

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
