"""Define the protocol for objects that place weights in a model instead of its stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from rksp.models.streaming.units import Slot, Unit

Begin = Callable[[], Callable[[], Tensor]]  # starts to load a weight; returns the wait function


class Guest(Protocol):
    """Places the weights of modules in place of the stream."""

    def enter(self, unit: Unit) -> None:
        """Place the weights of a unit."""
        ...

    def leave(self, unit: Unit) -> None:
        """Note that a unit has run; its weights stay until the next one, which may read them."""
        ...

    def end(self) -> None:
        """Remove the weights that are left when a pass has ended."""
        ...

    def expert(self, slot: Slot, index: int, begin: Begin) -> Tensor:
        """Return one expert of a stack, which `begin` starts to load."""
        ...
