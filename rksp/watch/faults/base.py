"""The base class of faults, defects planted to test what monitors see, and where they strike."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.datasets.batch import Batch
from rksp.ground.errors import NotCovered
from rksp.models.anatomy.chains import first_tensor
from rksp.recipe import Recipe
from rksp.watch.moment import Moment


class Fault(ABC):
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
        return None

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Return hooks for this step's forward and backward passes; the loop removes them."""
        return ()

    def after_backward(self, moment: Moment) -> None:
        """Corrupt gradients, or do nothing."""
        return None

    def after_update(self, moment: Moment) -> None:
        """Corrupt weights, or do nothing."""
        return None


def striking_places(model: nn.Module, fault: str, where: str, part: str) -> list[str]:
    """Return the paths that contain `part`.

    These are paths of trainable parameters or, for activations, of modules that own parameters.

    Raises:
        NotCovered: No path contains `part`.
    """
    if where == "activations":
        named = [(p, m) for p, m in model.named_modules() if list(m.parameters(recurse=False))]
    else:
        named = [(path, p) for path, p in model.named_parameters() if p.requires_grad]
    found = [path for path, _ in named if part in path]
    if not found:
        raise NotCovered(
            f"Fault {fault!r} found no {where} whose path contains {part!r}; "
            "give a part of a path that the model has."
        )
    return found


def with_first_tensor(output: object, change: Callable[[Tensor], Tensor]) -> object:
    """Return a module's output with its first floating tensor changed; None if it has none."""
    found = first_tensor(output)
    if found is None:
        return None
    changed = change(found)
    if isinstance(output, tuple):
        return tuple(changed if item is found else item for item in output)
    return changed
