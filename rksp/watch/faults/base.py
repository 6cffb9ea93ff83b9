"""The base class of faults, defects planted to test what monitors see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from rksp.datasets.batch import Batch
from rksp.recipe import Recipe
from rksp.watch.moment import Handle, Moment


class Fault:
    """Plants one defect, reproducibly: the same seed, model and data give the same run.

    The loop calls `recipe` and `batches` once before anything is built, and `bind` once. At every
    step it calls `arm` before the forward pass, `after_backward` before monitors and clipping, and
    `after_update` after the optimizer's step and before monitors read the weights.

    Attributes:
        name: Unique name in tables and on the command line (`--fault bitflip:step=50`), where the
            options are checked.
    """

    name: ClassVar[str]

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe as the fault changes it."""
        return recipe

    def batches(self, batches: Sequence[Batch], *, per_step: int, seed: int) -> Sequence[Batch]:
        """Return the run's batches, `per_step` of them a step, as the fault would have them."""
        return batches

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Find the place to strike.

        Raises:
            NotCovered: The model has no such place.
        """

    def arm(self, moment: Moment) -> Sequence[Handle]:
        """Return hooks for this step's forward and backward passes; the loop removes them."""
        return ()

    def after_backward(self, moment: Moment) -> None:
        """Corrupt gradients, or do nothing."""

    def after_update(self, moment: Moment) -> None:
        """Corrupt weights, or do nothing."""
