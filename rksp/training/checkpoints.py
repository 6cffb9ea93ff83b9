"""Checkpoints before trouble: the last states of a run, one of which an alarm writes to disk."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from safetensors.torch import save_file
from torch import nn
from torch.optim import Optimizer

from rksp.errors import InputError
from rksp.files import replacing
from rksp.run_state import RunState


class Checkpoints:
    """Keeps the last states in host memory and writes one from before the first alarm.

    The state kept longest is written, since slow defects are older than their alarm. Model and
    optimizer state stand in one safetensors file, `before-step-N.safetensors` (N is the step of
    the alarm; the metadata hold the step of the state): parameters and buffers under
    `model.NAME`, the optimizer's tensors under `optimizer.NAME.KEY`. Of a sharded model each rank
    has its own part and needs a folder of its own.

    Args:
        folder: Where to; made if missing.
        every: Steps between two states.
        keep: States in memory.
    """

    def __init__(self, folder: Path, *, every: int = 20, keep: int = 3) -> None:
        if every < 1 or keep < 1:
            raise InputError(f"Checkpoints need every and keep >= 1, got {every} and {keep}.")
        self.folder, self.every = folder, every
        self.written: Path | None = None
        self._states: deque[RunState] = deque(maxlen=keep)

    def keep(self, step: int, model: nn.Module, optimizer: Optimizer) -> None:
        """Takes the state before `step` if it is time to."""
        if self.written is None and step % self.every == 0:
            self._states.append(RunState.of(step, model, optimizer))

    def write(self, step: int, model: nn.Module) -> None:
        """Writes the oldest state kept; the first call does, later ones do nothing."""
        if self.written is not None or not self._states:
            return
        state = self._states[0]
        names = {parameter: name for name, parameter in model.named_parameters()}
        tensors = {f"model.{name}": tensor for name, tensor in state.model.items()}
        for parameter, entries in state.optimizer.items():
            for key, value in entries.items():
                if hasattr(value, "untyped_storage"):
                    tensors[f"optimizer.{names[parameter]}.{key}"] = value
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"before-step-{step}.safetensors"
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        with replacing(path) as partial:
            save_file(whole, partial, metadata={"step": str(state.step)})
        self.written = path
        self._states.clear()
