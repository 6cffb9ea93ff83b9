"""Copy a run's state to host memory: weights, buffers and the optimizer's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.watch.groups import local


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunState:
    """A copy of everything that training changes; for sharded tensors, this rank's part.

    Attributes:
        step: The first step that the state has not taken.
        model: Parameters and buffers by name.
        optimizer: The optimizer's state of each parameter: tensors and plain numbers.
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[Tensor, dict[str, Any]]

    @classmethod
    @torch.no_grad()
    def of(cls, step: int, model: nn.Module, optimizer: Optimizer | None) -> RunState:
        """Copy the state of a run before `step`."""
        return cls(
            step=step,
            model={name: _copied(tensor) for name, tensor in _tensors(model).items()},
            optimizer={
                parameter: {key: _copied(value) for key, value in state.items()}
                for part in optimizer_parts(optimizer)
                for parameter, state in part.state.items()
            },
        )

    @torch.no_grad()
    def restore(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Restore the state, bit for bit; rates and other options are not changed."""
        for name, tensor in _tensors(model).items():
            local(tensor).copy_(self.model[name])
        for part in optimizer_parts(optimizer):
            for parameter in list(part.state):
                state = part.state[parameter]
                kept = self.optimizer.get(parameter)
                if kept is None:  # the parameter had no state yet
                    del part.state[parameter]
                    continue
                for key, value in kept.items():
                    if isinstance(value, Tensor):
                        local(state[key]).copy_(value)
                    else:
                        state[key] = value


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, including those that checkpoints leave out."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def optimizer_parts(optimizer: Optimizer | None) -> tuple[Optimizer, ...]:
    """Return the optimizers that hold state: two if the optimizer is a pair."""
    return () if optimizer is None else tuple(getattr(optimizer, "parts", (optimizer,)))


def _copied(value: Any) -> Any:
    return local(value).to("cpu", copy=True) if isinstance(value, Tensor) else value
