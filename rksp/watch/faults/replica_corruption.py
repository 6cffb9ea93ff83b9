"""Fault: one replica of a data-parallel run computes wrong numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.watch.faults.base import Fault
from rksp.watch.faults.places import striking_places, with_first_tensor
from rksp.watch.groups import local
from rksp.watch.moment import Moment

Where = Literal["activations", "gradients"]


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
        where: Where = "activations",
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
