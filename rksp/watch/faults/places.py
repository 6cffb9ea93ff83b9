"""The places that a fault can strike: parameters and modules by a part of their path."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.chains import first_tensor


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
