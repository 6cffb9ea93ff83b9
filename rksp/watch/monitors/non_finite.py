"""Non-finite: NaN or infinity in the loss, the activations or the gradients, with its place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.model import definite
from rksp.kernels.wide_output import Unmade
from rksp.models.anatomy.chains import block_paths, first_tensor
from rksp.watch.groups import gradient_norms
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading


class NonFinite(Monitor):
    """Names the first module whose output is not finite, and the gradients that are not.

    - `non_finite_loss`: 1 if the loss is NaN or infinite, else 0. - `non_finite_modules`: number of
    modules without children whose output is not finite; `layer` is
      the first in forward order. Infinities that do not reach the loss (a mask inside a router) are
      not counted.
    - `non_finite_gradients`: number of parameters whose gradient is not finite; `layer` is the last
      in registration order, which backward reaches first. Under float16 the loss scaler provokes
      overflows and skips the step; they are then called `overflowed_gradients`.

    The test is one sum per tensor, in float32 at least. It is NaN or infinite exactly if an entry
    is (or if the sum itself overflows, beyond 3e38). On a CPU the inside of a block is not tested
    if the block's output is finite, because infinities inside it then do not reach the loss. On a
    GPU, where this test would wait for the device, all parts of a block are summed in one call.
    """

    name = "non-finite"
    phase = Phase.GRADIENT
    default_every = 1
    quantities = (
        "non_finite_loss",
        "non_finite_modules",
        "non_finite_gradients",
        "overflowed_gradients",
    )
    source = "rksp"

    def bind(self, model: nn.Module) -> str | None:
        """List the parameters, the blocks and the modules without children."""
        self._params = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        blocks = block_paths(model)
        self._blocks = [model.get_submodule(path) for path in blocks]
        self._leaves = [
            (name, leaf, any(name.startswith(f"{path}.") for path in blocks))
            for name, leaf in model.named_modules()
            if name and not any(leaf.children())
        ]
        self._clear()
        return None

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Put hooks on the outputs of modules without children and of blocks."""
        self._clear()
        return [
            *(
                leaf.register_forward_hook(self._after_leaf(name, is_inner))
                for name, leaf, is_inner in self._leaves
            ),
            *(block.register_forward_hook(self._after_block) for block in self._blocks),
        ]

    def read(self, moment: Moment) -> list[Reading]:
        """Return the three counts."""
        gradients = self._bad_gradients(moment)
        is_bad_loss = moment.loss is not None and not math.isfinite(moment.loss)
        modules = self._bad_modules() if is_bad_loss or gradients else []
        name = "overflowed_gradients" if self._is_half else "non_finite_gradients"
        first, last = "".join(modules[:1]), "".join(gradients[-1:])
        step = moment.step
        readings = [
            self.reading("non_finite_modules", step, float(len(modules)), layer=first),
            self.reading(name, step, float(len(gradients)), layer=last),
        ]
        if moment.loss is not None:
            loss = self.reading("non_finite_loss", step, float(is_bad_loss), layer=first)
            readings.insert(0, loss)
        self._clear()
        return readings

    def _clear(self) -> None:
        self._names: list[str] = []
        self._sums: list[Tensor] = []
        self._pending: list[tuple[str, Tensor]] = []
        self._is_half = False

    def _after_leaf(self, name: str, is_inner: bool):
        def after(module: nn.Module, args: tuple, output: object) -> None:
            tensor = first_tensor(output)
            if tensor is not None:
                self._is_half |= tensor.dtype is torch.float16
                self._pending.append((name, tensor.detach()))
                # What is not made yet waits for the loss, which tells of it without making it.
                if not is_inner and not isinstance(tensor, Unmade):
                    self._flush(tensor.detach())

        return after

    def _after_block(self, module: nn.Module, args: tuple, output: object) -> None:
        self._flush(first_tensor(output))

    def _flush(self, result: Tensor | None) -> None:
        """Sum the pending outputs, unless the result computed from them is finite."""
        pending, self._pending = self._pending, []
        is_asked = result is not None and not result.is_cuda
        if not (is_asked and math.isfinite(float(_totals([definite(result).detach()])[0]))):
            self._names += [name for name, _ in pending]
            self._sums += _totals([tensor for _, tensor in pending])

    def _bad_modules(self) -> list[str]:
        self._flush(None)
        return _not_finite(self._names, self._sums)

    def _bad_gradients(self, moment: Moment) -> list[str]:
        norms = gradient_norms(moment)
        held = {name: p.grad for name, p in self._params if p.grad is not None}
        return _not_finite(list(held), [norms[grad] for grad in held.values()])


def _totals(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a number for each tensor that is not finite if an entry is not."""
    if tensors and all(t.is_cuda and t.dtype is not torch.float64 for t in tensors):
        return list(torch._foreach_norm(list(tensors), 1, dtype=torch.float32))
    # The fused norm is seventeen times slower than a sum on a CPU.
    return [
        t.sum(dtype=torch.float64 if t.dtype is torch.float64 else torch.float32) for t in tensors
    ]


def _not_finite(names: list[str], totals: list[Tensor]) -> list[str]:
    if not totals:
        return []
    finite = torch.stack([total.double() for total in totals]).isfinite().tolist()
    return [name for name, good in zip(names, finite, strict=True) if not good]
