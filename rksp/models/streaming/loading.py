"""Weights on their way to where the model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

import torch
from torch import Tensor, nn

from rksp.models.streaming.buffers import Buffers

Jobs = Callable[[str, Tensor], list[Callable[[], object]]]


class Loading:
    """Tensors by name, filled by jobs in a pool and, for a GPU, copied there from pinned memory.

    Args:
        shapes: What to make: anything with a shape and a dtype, by name.
        jobs: Gives the jobs that fill a tensor.
        in_place: Of these, on a GPU, the jobs run there when they are wanted.
        pool: Runs the others.
        device: Where the tensors are wanted.
        buffers: Gives the tensors on the CPU.
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
            # torch keeps pinned memory for the next one itself.
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
        """Begins the copy to the GPU, beside what computes there, once all is filled."""
        if self._there is None and all(future.done() for future in self._futures):
            with torch.cuda.stream(self._copies):
                self._there = {
                    name: tensor.to(self.device, non_blocking=True)
                    for name, tensor in self._here.items()
                }

    def wait(self) -> dict[str, Tensor]:
        """The filled tensors; raises what a job raised."""
        for future in self._futures:
            future.result()
        self.send()
        if self._copies is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(self._copies)
            for tensor in self._there.values():
                tensor.record_stream(computing)
        return self._there | self._drawn_there()

    def _drawn_there(self) -> dict[str, Tensor]:
        drawn = {}
        for name, like in self._later.items():
            drawn[name] = torch.empty(like.shape, dtype=like.dtype, device=self.device)
            for job in self._jobs(name, drawn[name]):
                job()
        return drawn

    def drop(self) -> None:
        """Forgets the jobs that have not begun."""
        for future in self._futures:
            future.cancel()


def _pinned(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def choose_device() -> torch.device:
    """The GPU if torch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Puts a skeleton's buffers on a device; its parameters have no place."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(device)


def moved(value: object, device: torch.device) -> object:
    """Tensors in nested tuples, lists and dictionaries on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    return value
