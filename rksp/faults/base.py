"""The contract of a fault: a known defect planted in a run, to prove that monitors see it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from torch import nn
from torch.utils.hooks import RemovableHandle

from rksp.batch import Batch
from rksp.moment import Moment
from rksp.recipe import Recipe


class Fault(ABC):
    """Plants one defect, reproducibly: the same seed, model and data give the same run.

    Life: `recipe` and `batches` once before anything is built; `bind` once; then at every step
    `arm` before the forward pass, `after_backward` before monitors and clipping, `after_update`
    after the optimizer's step and before monitors read the weights.

    Attributes:
        name: Unique, as in tables and on the command line (`--fault bitflip:step=50`).
    """

    name: ClassVar[str]

    def recipe(self, recipe: Recipe) -> Recipe:
        """The recipe as the fault would have it."""
        return recipe

    def batches(self, batches: Sequence[Batch], *, per_step: int, seed: int) -> Sequence[Batch]:
        """Return the run's batches, `per_step` of them a step, as the fault would have them."""
        return batches

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Finds where it strikes.

        Raises:
            NotCovered: The model has no such place.
        """
        return None

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Hooks for this step's forward and backward passes; removed by the loop afterwards."""
        return ()

    def after_backward(self, moment: Moment) -> None:
        """May corrupt gradients."""
        return None

    def after_update(self, moment: Moment) -> None:
        """May corrupt weights."""
        return None
