"""Leave a model as it was found: its modes, buffers and gradients, and the random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode; restore the modes and the buffers afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module._buffers, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                owner[name] = buffer
                if buffer is None or value is None or buffer.is_meta:
                    continue
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


@contextmanager
def random_state_kept(model: nn.Module) -> Iterator[None]:
    """Restore the random state of the host and of the model's devices afterwards."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Restore a model's gradients and the random state after the measurements inside.

    Each measurement restores weights, buffers, modes and hooks itself.
    """
    params = list(model.parameters())
    gradients = [p.grad for p in params]
    with random_state_kept(model):
        try:
            for p in params:
                p.grad = None
            yield
        finally:
            for p, gradient in zip(params, gradients, strict=True):
                p.grad = gradient
