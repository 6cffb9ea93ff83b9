"""Checkpoints from before the trouble: recent states, one of which an alarm writes to disk."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from torch.optim import Optimizer

from rksp.ground.errors import Incomplete
from rksp.ground.files import ResultFolder, replacing
from rksp.watch.run_state import RunState


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
        names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
        tensors = {f"model.{name}": tensor for name, tensor in state.model.items()}
        for parameter, entries in state.optimizer.items():
            for key, value in entries.items():
                if hasattr(value, "untyped_storage"):
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
