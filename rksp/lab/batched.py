"""Train replicas of one shape, each with its own seed and recipe, as one program.

On an accelerator the kernel launches of a small model cost more than its arithmetic: R replicas
stacked along a leading axis launch about as many kernels as one. A CPU gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from rksp.batch import Batch, cross_entropy
from rksp.ground.errors import InputError
from rksp.models.zoo import ZooConfig, ZooTransformer
from rksp.models.zoo.feed_forward import MixtureOfExperts
from rksp.outcome import Curves
from rksp.recipe import Recipe

CHECK_EVERY = 10  # steps between checks from the host; each check waits for the device
HOPELESS_LOSS = 50.0  # three steps in a row above it end a run, as in rksp.watch.training.hopeless


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The place of each parameter in the flat vector of one replica."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each parameter."""
        return [shape.numel() for shape in self.shapes]

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Split a flat vector into the parameters by name."""
        parts = zip(self.names, flat.split(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}


def train_replicas(
    config: ZooConfig,
    recipes: Sequence[Recipe],
    *,
    seeds: Sequence[int],
    batches: Sequence[Batch] | Sequence[Sequence[Batch]],
    device: torch.device | str = "cpu",
) -> list[Curves]:
    """Train R models of one shape together; each run equals one of `rksp.watch.training.train`.

    Every replica has its own parameters, gradient norm, clipping, AdamW state, warm-up and
    schedule. A replica whose outcome is certain (`rksp.watch.training.hopeless`) is frozen by a
    mask, which leaves the others bitwise unchanged. The program ends when all replicas are frozen.

    Args:
        config: The shared shape.
        recipes: R recipes with a learning rate: AdamW in fp32, equal `max_steps`.
        seeds: Initialization seed of each replica, as in `build_member`.
        batches: `max_steps` batches that all replicas see, or R such lists of equal shape.
        device: Device to train on; the results are on the host.

    Returns:
        The curves of each replica, in the order given.

    Raises:
        InputError: The recipes or batches cannot be trained as one program.
    """
    steps = _shared_steps(recipes, seeds)
    replicas = [_build(config, seed) for seed in seeds]
    flat = torch.stack([torch.cat([p.flatten() for p in m.parameters()]) for m in replicas])
    flat = flat.detach().to(device)  # one copy: a copy per parameter would cost more than a step
    template = replicas[0].to(device)
    named = dict(template.named_parameters())
    shape = _Shape(names=tuple(named), shapes=tuple(p.shape for p in named.values()))
    decays = torch.cat([torch.full((p.numel(),), float(p.dim() >= 2)) for p in named.values()])
    inputs, labels, axis = _stacked(batches, len(recipes), steps, device)

    def loss_of(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        output = functional_call(template, shape.unpack(theta), (x,))
        loss = cross_entropy(output.logits, y)
        return loss if output.aux_loss is None else loss + output.aux_loss

    gradients = vmap(grad_and_value(loss_of), in_dims=(0, axis, axis))
    update = _AdamW(flat, decays.to(device), recipes)
    losses = torch.full((steps, len(recipes)), float("nan"), device=device)
    norms = losses.clone()
    alive = torch.ones(len(recipes), dtype=torch.bool, device=device)
    taken = torch.zeros(len(recipes), dtype=torch.long, device=device)
    high = torch.zeros_like(taken)
    for step in range(steps):
        # vmap has no rule for the fused attention kernels: the plain form is two matmuls.
        with sdpa_kernel(SDPBackend.MATH):
            gradient, loss = gradients(flat, inputs[step], labels[step])
        norm = torch.linalg.vector_norm(gradient, dim=1)
        losses[step], taken = loss, taken + alive
        norms[step] = torch.where(loss.isfinite(), norm, float("nan"))
        update(step, gradient, norm, alive & loss.isfinite())
        high = torch.where(loss > HOPELESS_LOSS, high + 1, 0)
        alive &= loss.isfinite() & norm.isfinite() & (high < min(3, step + 1))
        if (step + 1) % CHECK_EVERY == 0 and not alive.any():
            break
    for module in template.modules():
        if isinstance(module, MixtureOfExperts):
            module.aux_loss = None  # a tensor of the function transform, invalid outside of it
    return _curves(losses, norms, taken, steps)


class _AdamW:
    """AdamW (Loshchilov and Hutter, 2019) on `[replicas, parameters]`, in place.

    Each row has its own recipe. A step leaves the parameters and moments of a masked row
    unchanged, whatever its gradient holds.
    """

    def __init__(self, flat: Tensor, decays: Tensor, recipes: Sequence[Recipe]) -> None:
        self.flat, self.first, self.second = flat, torch.zeros_like(flat), torch.zeros_like(flat)
        steps = range(recipes[0].max_steps)

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=flat.dtype, device=flat.device).unsqueeze(-1)

        def table(value) -> list[Tensor]:
            return [column([value(recipe, step) for recipe in recipes]) for step in steps]

        def bound(recipe: Recipe) -> float:
            return float("inf") if recipe.max_grad_norm is None else recipe.max_grad_norm

        self.max_norm = column([bound(r) for r in recipes])
        self.beta1 = column([r.adam_beta1 for r in recipes])
        self.beta2 = column([r.adam_beta2 for r in recipes])
        self.epsilon = column([r.adam_epsilon for r in recipes])
        self.step_size = table(lambda r, t: r.learning_rate_at(t) / (1 - r.adam_beta1 ** (t + 1)))
        self.root = table(lambda r, t: (1 - r.adam_beta2 ** (t + 1)) ** 0.5)
        self.decay = table(lambda r, t: r.learning_rate_at(t) * r.weight_decay)
        self.decays = decays

    def __call__(self, step: int, gradient: Tensor, norm: Tensor, active: Tensor) -> None:
        norm, active = norm.unsqueeze(-1), active.unsqueeze(-1)
        clip = torch.where(norm > self.max_norm, self.max_norm / (norm + 1e-6), 1.0)
        gradient = gradient * clip
        first = torch.lerp(self.first, gradient, 1 - self.beta1)
        second = self.beta2 * self.second + (1 - self.beta2) * gradient.square()
        moved = self.flat * (1 - self.decay[step] * self.decays)
        moved -= self.step_size[step] * first / (second.sqrt() / self.root[step] + self.epsilon)
        self.first.copy_(torch.where(active, first, self.first))
        self.second.copy_(torch.where(active, second, self.second))
        self.flat.copy_(torch.where(active, moved, self.flat))


def _build(config: ZooConfig, seed: int) -> ZooTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ZooTransformer(config).train()


def _shared_steps(recipes: Sequence[Recipe], seeds: Sequence[int]) -> int:
    if not recipes or len(recipes) != len(seeds):
        raise InputError(
            f"Replicas need one seed per recipe, got {len(recipes)} recipes and "
            f"{len(seeds)} seeds; give lists of equal, positive length."
        )
    for recipe in recipes:
        if recipe.learning_rate is None:
            raise InputError("A replica's recipe has no learning_rate; give one to each.")
        if (recipe.optimizer, recipe.precision) != ("adamw", "fp32"):
            raise InputError(
                f"Replicas train together under adamw in fp32 only, got {recipe.optimizer} in "
                f"{recipe.precision}; train such a run alone with rksp.watch.training.train."
            )
        if recipe.gradient_accumulation_steps != 1:
            raise InputError(
                "Replicas take one batch a step, got gradient_accumulation_steps "
                f"{recipe.gradient_accumulation_steps}; use a larger batch_size instead."
            )
    lengths = sorted({recipe.max_steps for recipe in recipes})
    if len(lengths) > 1:
        raise InputError(f"Replicas need equal max_steps, got {lengths}; group runs by length.")
    return lengths[0]


def _stacked(
    batches: Sequence[Batch] | Sequence[Sequence[Batch]], replicas: int, steps: int, device
) -> tuple[Tensor, Tensor, int | None]:
    """Return inputs and labels `[steps, (replicas,) batch, …]` and the replica axis of a step."""
    shared = isinstance(batches[0], Batch)
    columns: list[Any] = [batches] if shared else list(batches)
    if len(columns) != (1 if shared else replicas) or any(len(c) < steps for c in columns):
        raise InputError(
            f"{replicas} replicas of {steps} steps need {steps} shared batches or {replicas} "
            f"lists of {steps}, got {len(columns)} of {sorted({len(c) for c in columns})}."
        )
    inputs = torch.stack([torch.stack([b.inputs for b in c[:steps]]) for c in columns], 1)
    labels = torch.stack([torch.stack([b.labels for b in c[:steps]]) for c in columns], 1)
    if shared:
        inputs, labels = inputs.squeeze(1), labels.squeeze(1)
    return inputs.to(device), labels.to(device), None if shared else 0


def _curves(losses: Tensor, norms: Tensor, taken: Tensor, steps: int) -> list[Curves]:
    table = zip(losses.T.cpu().numpy(), norms.T.cpu().numpy(), taken.tolist(), strict=True)
    return [
        Curves(
            loss=loss[:count].astype(np.float32),
            grad_norm=norm[:count].astype(np.float32),
            planned_steps=steps,
        )
        for loss, norm, count in table
    ]
