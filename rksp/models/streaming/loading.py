"""Load weights to the device where the model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import torch
from torch import Tensor, nn

from rksp.ground.model import definite
from rksp.models.streaming.buffers import Buffers

Jobs = Callable[[str, Tensor], list[Callable[[], object]]]


class Loading:
    """Tensors by name; jobs in a pool fill them, and a GPU gets them from pinned memory.

    Args:
        shapes: Objects with the shape and dtype of each tensor, by name.
        jobs: Returns the jobs that fill a tensor.
        in_place: Tells for which tensors the jobs run on the GPU itself, on demand.
        pool: Runs the other jobs.
        device: Device of the finished tensors.
        buffers: Provides the tensors on the CPU.
    """

    def __init__(
        self,
        shapes: Mapping[str, Tensor],
        jobs: Jobs,
        *,
        in_place: Callable[[str], bool],
        pool: Executor,
        device: torch.device,
        buffers: Buffers,
    ) -> None:
        self.device = device
        self.size = sum(like.numel() * like.element_size() for like in shapes.values())
        on_gpu = device.type == "cuda"
        self._jobs = jobs
        self._later = {name: like for name, like in shapes.items() if on_gpu and in_place(name)}
        self._here = {
            # torch itself keeps pinned memory for reuse.
            name: _pinned(like) if on_gpu else buffers.empty(like)
            for name, like in shapes.items()
            if name not in self._later
        }
        self._there: dict[str, Tensor] | None = None if on_gpu else self._here
        self._copies = torch.cuda.Stream(device) if on_gpu and self._here else None
        self._futures: list[Future] = [
            pool.submit(job) for name, tensor in self._here.items() for job in jobs(name, tensor)
        ]

    def send(self) -> None:
        """Start the copy to the GPU, parallel to its computation, once all jobs are done."""
        if self._there is None and all(future.done() for future in self._futures):
            with torch.cuda.stream(self._copies):
                self._there = {
                    name: tensor.to(self.device, non_blocking=True)
                    for name, tensor in self._here.items()
                }

    def wait(self) -> dict[str, Tensor]:
        """Return the filled tensors; raise the error of a failed job."""
        for future in self._futures:
            future.result()
        self.send()
        if self._copies is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(self._copies)
            for tensor in definite(self._there).values():
                tensor.record_stream(computing)
        return definite(self._there) | self._drawn_there()

    def _drawn_there(self) -> dict[str, Tensor]:
        drawn = {}
        for name, like in self._later.items():
            drawn[name] = torch.empty(like.shape, dtype=like.dtype, device=self.device)
            for job in self._jobs(name, drawn[name]):
                job()
        return drawn

    def drop(self) -> None:
        """Cancel the jobs that have not started."""
        for future in self._futures:
            future.cancel()


def _pinned(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def choose_device() -> torch.device:
    """Return the GPU if torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move a skeleton's buffers to a device; its parameters have no storage."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)


def moved(value: Any, device: torch.device) -> Any:
    """Move the tensors in nested tuples, lists and dictionaries to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    return value
