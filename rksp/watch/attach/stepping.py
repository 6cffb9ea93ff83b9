"""What holds for a part of a step alone: a rate for its update, gradients without a loss scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def scale_rates(optimizer: Optimizer, factor: Callable[[], float]) -> tuple[RemovableHandle, ...]:
    """Multiply the rates of an optimizer's groups by a factor while it steps.

    Schedules read and write the group's rate, some as a multiple of the last one. The rate is
    therefore restored after the step, bit for bit; at a factor of 1.0 it is never changed. The
    handles that are returned end it.
    """
    rates: list[float | Tensor] = []

    def lower(*_: object) -> None:
        rates[:] = [group["lr"] for group in optimizer.param_groups]
        if (scale := factor()) != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * scale

    def restore(*_: object) -> None:
        # The step in which the hooks are registered has noted no rates.
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = rate

    return optimizer.register_step_pre_hook(lower), optimizer.register_step_post_hook(restore)


@contextmanager
def unscaled(model: nn.Module, scale: float, *, keep_changes: bool = False) -> Iterator[None]:
    """Divide the gradients by a loss scale inside the block; restore the same tensors afterwards.

    Args:
        model: The model whose gradients are divided.
        scale: The loss scale.
        keep_changes: Keep the changes to the gradients that were made inside the block.
    """
    if scale == 1.0:
        yield
        return
    held = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    try:
        with torch.no_grad():
            for p, grad in held:
                p.grad = grad / scale
        yield
    finally:
        with torch.no_grad():
            for p, grad in held:
                if keep_changes and p.grad is not None:
                    grad.copy_(p.grad * scale)
                p.grad = grad
