"""The training loop. It records raw losses and unclipped gradient norms."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rksp.datasets.batch import Batch, task_loss
from rksp.ground.errors import InputError
from rksp.ground.model import definite
from rksp.own_runs.outcome import Curves
from rksp.recipe import Recipe
from rksp.recipe.optimizers.table import make_optimizer
from rksp.watch.groups import mean_over_ranks
from rksp.watch.moment import Moment, Repeat
from rksp.watch.training.beside import Beside

Stop = Callable[[list[float], list[float]], bool]


def hopeless(losses: list[float], norms: list[float]) -> bool:
    """Return whether a run's outcome is certain: not finite, or three losses in a row above 50."""
    return not np.isfinite(losses[-1]) or not np.isfinite(norms[-1]) or min(losses[-3:]) > 50.0


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    recipe: Recipe,
    *,
    stop: Stop = hopeless,
    companion: Beside | None = None,
) -> Curves:
    """Train `model` in place for `recipe.max_steps` steps, or until `stop` returns true.

    Under `torch.distributed` every rank calls it with its own batches. Losses are means over the
    ranks, and norms are those of the whole gradient, sharded or not.

    Args:
        model: A model in training mode, on any device; `batches` must be on the same one.
        batches: One for each micro-step: `max_steps` times `gradient_accumulation_steps` of them.
        recipe: A recipe with a learning rate.
        stop: Called after every step with all losses and gradient norms so far.
        companion: Watches the run or acts on it; by default nothing does.

    Returns:
        Raw losses, and gradient norms before clipping. A step whose loss is not finite is recorded
        but not applied. In fp16 a step whose scaled gradient overflows is computed again at half
        the scale, down to a scale of one.

    Raises:
        InputError: The precision is fp8.
    """
    if recipe.precision == "fp8":
        raise InputError("rksp does not train in fp8; choose bf16 (--precision bf16).")
    optimizer = make_optimizer(model, recipe)
    beside = companion or Beside()
    beside.bind(model, optimizer)  # may add parameters
    params = [p for p in model.parameters() if p.requires_grad]
    device = params[0].device.type
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.precision)
    cast = torch.autocast(device, dtype=low) if low else contextlib.nullcontext()
    scaler = torch.amp.GradScaler(device, enabled=recipe.precision == "fp16")
    micro_steps = recipe.gradient_accumulation_steps
    losses: list[float] = []
    norms: list[float] = []

    for step in range(recipe.max_steps):
        rate = recipe.learning_rate_at(step) * beside.rate_scale
        for group in optimizer.param_groups:
            group["lr"] = rate
        moment = Moment(step=step, model=model, optimizer=optimizer, learning_rate=rate)
        micro_batches = batches[step * micro_steps : (step + 1) * micro_steps]
        passes = _Passes(moment, micro_batches, beside, cast, scaler)
        moment.repeat = passes.again
        beside.begin(moment)
        while True:
            moment.loss = loss = mean_over_ranks(passes.run())
            if not math.isfinite(loss):
                break
            scaler.unscale_(optimizer)
            if not _overflowed(scaler, params):
                break
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        beside.after_backward(moment)
        norm = gradient_norm(params) if math.isfinite(loss) else math.nan
        losses.append(loss)
        norms.append(norm)
        if math.isfinite(loss):
            may_have_changed = beside.before_update(moment)
            if recipe.max_grad_norm is not None:
                _clip(params, gradient_norm(params) if may_have_changed else norm, recipe)
            scaler.step(optimizer)
            scaler.update()
        beside.after_update(moment)
        optimizer.zero_grad(set_to_none=True)
        if stop(losses, norms):
            break
    with np.errstate(over="ignore"):  # the norm of many gradients may exceed float32
        return Curves(
            loss=np.array(losses, dtype=np.float32),
            grad_norm=np.array(norms, dtype=np.float32),
            planned_steps=recipe.max_steps,
        )


class _Passes:
    """The forward and backward passes of one step, as often as they are asked for."""

    def __init__(
        self,
        moment: Moment,
        micro_batches: Sequence[Batch],
        beside: Beside,
        cast: AbstractContextManager[Any],
        scaler: torch.amp.GradScaler,
    ) -> None:
        self.moment, self.micro_batches, self.beside = moment, micro_batches, beside
        self.cast, self.scaler = cast, scaler
        self._randomness = torch.get_rng_state()
        self._loss = math.nan

    def run(self) -> float:
        """Add the step's gradients, scaled, to those that stand; return the loss of this rank."""
        loss, count = 0.0, len(self.micro_batches)
        for batch in self.micro_batches:
            with self.cast:
                part = task_loss(self.moment.model, batch) / count
                penalty = self.beside.penalty(self.moment)
            whole = part if penalty is None else part + penalty / count
            torch.autograd.backward(self.scaler.scale(whole))
            loss += part.item()
        self._loss = loss
        return loss

    def again(self) -> Repeat:
        """Repeat the step beside its own gradients; only the CPU's generator is put back."""
        model, own = self.moment.model, self._loss
        held = [(p, p.grad) for p in model.parameters() if p.grad is not None]
        for p, _ in held:
            p.grad = None
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._randomness)
            with self.beside.repeating(self.moment):
                loss = self.run()
                for p, _ in held:
                    definite(p.grad).div_(self.scaler.get_scale())
        gradients = [definite(p.grad) for p, _ in held]
        for p, grad in held:
            p.grad = grad
        return Repeat(gradients=gradients, moved=abs(loss - own) / max(abs(own), 1e-30))


def gradient_norm(params: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all gradients together, over all shards, in one reduction.

    It is infinite only if a gradient is: where squares overflow float32, it is computed in float64.
    """
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:  # an intervention dropped the step
        return 0.0
    norm = _total(torch._foreach_norm(grads))
    return norm if math.isfinite(norm) else _total([grad.double().norm() for grad in grads])


def _total(norms: Sequence[Tensor]) -> float:
    norm = torch.stack(list(norms)).norm()
    # float() of a sharded norm would silently give the norm of the local shard.
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _clip(params: Sequence[Tensor], norm: float, recipe: Recipe) -> None:
    if norm > definite(recipe.max_grad_norm):
        scale = definite(recipe.max_grad_norm) / (norm + 1e-6)
        torch._foreach_mul_([p.grad for p in params if p.grad is not None], scale)


def _overflowed(scaler: torch.amp.GradScaler, params: Sequence[Tensor]) -> bool:
    """Return whether the gradient left fp16's range at a scale that can still be lowered."""
    if not scaler.is_enabled() or scaler.get_scale() <= 1.0:
        return False
    return not math.isfinite(gradient_norm(params))
