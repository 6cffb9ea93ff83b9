"""The training loop: plain, and honest about losses and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rksp.datasets.tasks import Batch
from rksp.objective import task_loss
from rksp.optimizers import make_optimizer
from rksp.outcome import Curves
from rksp.recipe import Recipe

Stop = Callable[[list[float], list[float]], bool]


def hopeless(losses: list[float], norms: list[float]) -> bool:
    """Stops a run whose outcome is certain: non-finite, or three losses in a row above 50."""
    return not np.isfinite(losses[-1]) or not np.isfinite(norms[-1]) or min(losses[-3:]) > 50.0


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    *,
    stop: Stop = hopeless,
) -> Curves:
    """Trains `model` in place for `recipe.max_steps` steps, or until `stop` says so.

    Args:
        model: In training mode, on any device; `batches` must be on the same.
        batches: One per micro-step: `max_steps` times `gradient_accumulation_steps` of them.
        recipe: With a learning rate.
        stop: Called after every step with all losses and gradient norms so far.

    Returns:
        Raw losses and gradient norms before clipping. A step whose loss is not finite is
        recorded and not applied.
    """
    optimizer = make_optimizer(model, recipe)
    params = [p for p in model.parameters() if p.requires_grad]
    device = params[0].device.type
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)
    cast = torch.autocast(device, dtype=low) if low else contextlib.nullcontext()
    scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "fp16")
    micro_steps = recipe.gradient_accumulation_steps
    losses: list[float] = []
    norms: list[float] = []

    for step in range(recipe.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        loss = 0.0
        for batch in batches[step * micro_steps : (step + 1) * micro_steps]:
            with cast:
                part = task_loss(model, batch) / micro_steps
            scaler.scale(part).backward()
            loss += part.item()
        losses.append(loss)
        if not np.isfinite(loss):
            norms.append(float("nan"))
            break
        scaler.unscale_(optimizer)
        norm = gradient_norm(params)
        norms.append(norm)
        if recipe.max_grad_norm is not None and norm > recipe.max_grad_norm:
            scale = recipe.max_grad_norm / (norm + 1e-6)
            torch._foreach_mul_([p.grad for p in params if p.grad is not None], scale)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if stop(losses, norms):
            break
    return Curves(
        loss=np.array(losses, dtype=np.float32),
        grad_norm=np.array(norms, dtype=np.float32),
        planned_steps=recipe.max_steps,
    )


def gradient_norm(params: Sequence[Tensor]) -> float:
    """Euclidean norm of all gradients together, in one reduction."""
    norms = torch._foreach_norm([p.grad for p in params if p.grad is not None])
    return float(torch.stack(norms).norm())
