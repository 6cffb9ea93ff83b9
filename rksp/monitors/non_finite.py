"""Non-finite: NaN or infinity in the loss, the activations or the gradients, with its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.models.blocks import first_tensor
from rksp.monitors.base import Moment, Monitor, Phase, Reading
from rksp.monitors.groups import local

BATCH = 16


class NonFinite(Monitor):
    """Names the first module whose output is not finite, and the gradients that are not.

    - `non_finite_loss`: 1 if the loss is NaN or infinite, else 0.
    - `non_finite_modules`: number of modules without children whose output is not finite; `layer`
      is the first in forward order. Infinities that the loss does not inherit (a mask inside a
      router) are not counted.
    - `non_finite_gradients`: number of parameters whose gradient is not finite; `layer` is the last
      in registration order, where backward met it first. Under float16 the loss scaler makes
      overflows on purpose and skips the step: then they are named `overflowed_gradients`.

    The test is one sum per tensor, in float32 at least, which is NaN or infinite exactly if an
    entry is (or the sum itself overflows, beyond 3e38). On a GPU it is taken of `BATCH` tensors
    at once, which keeps that many outputs alive a little longer.
    """

    name: ClassVar[str] = "non-finite"
    phase: ClassVar[Phase] = Phase.GRADIENT
    default_every: ClassVar[int] = 1

    def bind(self, model: nn.Module) -> str | None:
        self._params = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._leaves = [(n, m) for n, m in model.named_modules() if n and not any(m.children())]
        self._clear()
        return None

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        self._clear()
        return [leaf.register_forward_hook(self._hook(name)) for name, leaf in self._leaves]

    def read(self, moment: Moment) -> list[Reading]:
        gradients = self._bad_gradients()
        is_bad_loss = moment.loss is not None and not math.isfinite(moment.loss)
        modules = self._bad_modules() if is_bad_loss or gradients else []
        name = "overflowed_gradients" if self._is_half else "non_finite_gradients"
        readings = [
            self._reading("non_finite_modules", moment.step, modules[:1], len(modules)),
            self._reading(name, moment.step, gradients[-1:], len(gradients)),
        ]
        if moment.loss is not None:
            readings.insert(
                0, self._reading("non_finite_loss", moment.step, modules[:1], int(is_bad_loss))
            )
        self._clear()
        return readings

    def _clear(self) -> None:
        self._names: list[str] = []
        self._sums: list[Tensor] = []
        self._pending: list[Tensor] = []
        self._is_half = False

    def _hook(self, name: str):
        def after(module: nn.Module, args: tuple, output: object) -> None:
            tensor = first_tensor(output)
            if tensor is not None:
                self._is_half |= tensor.dtype is torch.float16
                self._names.append(name)
                self._pending.append(tensor.detach())
                if len(self._pending) == BATCH:
                    self._flush()

        return after

    def _flush(self) -> None:
        self._sums += _totals(self._pending)
        self._pending = []

    def _bad_modules(self) -> list[str]:
        self._flush()
        return _not_finite(self._names, self._sums)

    def _bad_gradients(self) -> list[str]:
        held = [(name, local(p.grad)) for name, p in self._params if p.grad is not None]
        return _not_finite([name for name, _ in held], _totals([grad for _, grad in held]))

    def _reading(self, quantity: str, step: int, layers: list[str], count: int) -> Reading:
        layer = layers[0] if layers else ""
        return Reading(
            monitor=self.name, quantity=quantity, step=step, layer=layer, value=float(count)
        )


def _totals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A number for each tensor that is not finite if an entry is not."""
    if tensors and all(t.is_cuda and t.dtype is not torch.float64 for t in tensors):
        return list(torch._foreach_norm(tensors, 1, dtype=torch.float32))
    # The fused norm is seventeen times slower than a sum on a CPU.
    return [
        t.sum(dtype=torch.float64 if t.dtype is torch.float64 else torch.float32) for t in tensors
    ]


def _not_finite(names: list[str], totals: list[Tensor]) -> list[str]:
    if not totals:
        return []
    finite = torch.stack([total.float() for total in totals]).isfinite().tolist()
    return [name for name, good in zip(names, finite, strict=True) if not good]
