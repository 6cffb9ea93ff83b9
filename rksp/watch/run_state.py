"""A run's state in host memory, and checkpoints from before the trouble, which an alarm writes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from rksp.ground.errors import Incomplete
from rksp.ground.files import ResultFolder, replacing
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
    optimizer: dict[Tensor, dict[str, object]]

    @classmethod
    @torch.no_grad()
    def of(cls, step: int, model: nn.Module, optimizer: Optimizer | None) -> RunState:
        """Copy the state of a run before `step`."""
        return cls(
            step=step,
            model={name: _copied(tensor) for name, tensor in _tensors(model).items()},
            optimizer={
                parameter: {
                    key: _copied(value) if isinstance(value, Tensor) else value
                    for key, value in state.items()
                }
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
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def optimizer_parts(optimizer: Optimizer | None) -> tuple[Optimizer, ...]:
    """Return the optimizers that hold state: two if the optimizer is a pair."""
    return () if optimizer is None else tuple(getattr(optimizer, "parts", (optimizer,)))


def _copied(tensor: Tensor) -> Tensor:
    return local(tensor).to("cpu", copy=True)


class Checkpoints:
    """Keeps recent states in host memory and writes the oldest of them at the first alarm.

    The oldest state is written because slow defects begin long before their alarm. Model and
    optimizer state are in one safetensors file, `before-step-N.safetensors`. N is the step of the
    alarm; the metadata hold the step of the state. Parameters and buffers are under `model.NAME`,
    the optimizer's tensors under `optimizer.NAME.KEY`. With a sharded model each rank writes its
    own part and needs a folder of its own.

    Args:
        folder: The folder, created if missing.
        every: Steps between two states.
        keep: Number of states in memory.
    """

    def __init__(self, folder: Path, *, every: int = 20, keep: int = 3) -> None:
        self.folder, self.every = folder, every
        self.written: Path | None = None
        self._states: deque[RunState] = deque(maxlen=keep)

    def keep(self, step: int, model: nn.Module, optimizer: Optimizer) -> None:
        """Copy the state before `step` if it is time."""
        if self.written is None and step % self.every == 0:
            self._states.append(RunState.of(step, model, optimizer))

    def write(self, step: int, model: nn.Module) -> None:
        """Write the oldest state; later calls do nothing.

        Raises:
            InputError: The folder cannot be created.
            Incomplete: The file cannot be written; an old file is unchanged.
        """
        if self.written is not None or not self._states:
            return
        state = self._states[0]
        names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        tensors = {f"model.{name}": tensor for name, tensor in state.model.items()}
        for parameter, entries in state.optimizer.items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{names[parameter]}.{key}"] = value
        path = ResultFolder(self.folder).path(f"before-step-{step}", ".safetensors")
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        try:
            with replacing(path) as partial:
                save_file(whole, partial, metadata={"step": str(state.step)})
        except SafetensorError as error:
            raise Incomplete(f"{path} cannot be written: {error}.") from error
        self.written = path
        self._states.clear()
