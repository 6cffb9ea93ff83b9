"""Weights on their way to where the model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

import torch
from torch import Tensor, nn


class Loading:
    """Tensors by name, filled by jobs in a pool and, for a GPU, copied there from pinned memory.

    Args:
        shapes: What to make: anything with a shape and a dtype, by name.
        jobs: Gives the jobs that fill a tensor.
        pool: Runs them.
        device: Where the tensors are wanted.
    """

    def __init__(
        self,
        shapes: Mapping[str, Tensor],
        jobs: Callable[[str, Tensor], list[Callable[[], object]]],
        pool: Executor,
        device: torch.device,
    ) -> None:
        self.device = device
        on_gpu = device.type == "cuda"
        self._here = {
            name: torch.empty(like.shape, dtype=like.dtype, pin_memory=on_gpu)
            for name, like in shapes.items()
        }
        self._there: dict[str, Tensor] | None = None if on_gpu else self._here
        self._copies = torch.cuda.Stream(device) if on_gpu else None
        self._futures: list[Future] = [
            pool.submit(job) for name, tensor in self._here.items() for job in jobs(name, tensor)
        ]
        self.size = sum(t.numel() * t.element_size() for t in self._here.values())

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
        return self._there

    def drop(self) -> None:
        """Forgets the jobs that have not begun."""
        for future in self._futures:
            future.cancel()


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
