"""Who gives a streamed model's modules their weights while the stream itself does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from rksp.models.streaming.units import Slot, Unit

Begin = Callable[[], Callable[[], Tensor]]  # begins to load a weight, and gives what waits for it


class Guest(Protocol):
    """What gives modules their weights in the stream's place."""

    def enter(self, unit: Unit) -> None:
        """Puts the weights of a unit where they stand."""
        ...

    def leave(self, unit: Unit) -> None:
        """Takes them away."""
        ...

    def expert(self, slot: Slot, index: int, begin: Begin) -> Tensor:
        """One expert of a stack, which `begin` begins to load."""
        ...
