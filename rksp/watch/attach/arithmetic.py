"""The first operation of a pass that returns no finite number where it was given finite ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_HALF = (torch.float16, torch.bfloat16)
_UNSET = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation.

    Attributes:
        name: As torch calls it (`log`, `_to_copy`).
        module: Path of the innermost module that was running; empty outside of all.
        kind: Type of what it returned.
        largest: The largest finite size of a number that it was given.
        is_nan: Whether it returned NaN, and not just infinities.
    """

    name: str
    module: str
    kind: torch.dtype
    largest: float
    is_nan: bool

    @property
    def is_cast(self) -> bool:
        """Whether it does nothing but change the type."""
        return self.name in ("_to_copy", "copy_", "to")


class _Looking(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Notes the operations that turn finite numbers into others."""

    def __init__(self, inside: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.found: list[Operation] = []
        self._inside = inside

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if _is_float(x)]
        # Before the call, which may write to what it is given.
        sizes = [float(x.detach().abs().max()) for x in given if x.numel()]
        scalars = [x for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
        out = func(*args, **kwargs)
        name = func._schema.name
        is_good = all(map(math.isfinite, (*sizes, *scalars)))
        if not given or not is_good or name in _UNSET or len(self.found) >= 8:
            return out
        for one in tree_leaves(out):
            if _is_float(one) and one.numel() and not bool(one.detach().isfinite().all()):
                self.found.append(
                    Operation(
                        name=name.removeprefix("aten::"),
                        module=self._inside[-1] if self._inside else "",
                        kind=one.dtype,
                        largest=max(sizes, default=0.0),
                        is_nan=bool(one.detach().isnan().any()),
                    )
                )
                break
        return out


def first_bad(model: nn.Module, run: Callable[[], Tensor | None]) -> Operation | None:
    """Return the operation that made the first NaN of a pass, or the infinity that led to it.

    Infinities that a script writes itself, as a mask does, are no operation on finite numbers.

    Args:
        model: The model.
        run: Runs the pass, and returns its loss.
    """
    inside: list[str] = []
    looking = _Looking(inside)
    with _following(model, inside), looking:
        loss = run()
        if loss is not None and loss.requires_grad and bool(loss.detach().isfinite()):
            trained = [p for p in model.parameters() if p.requires_grad]
            torch.autograd.grad(loss, trained, allow_unused=True)
    half = next((one for one in looking.found if one.kind in _HALF), None)
    return (
        half
        or next((one for one in looking.found if one.is_nan), None)
        or next(iter(looking.found), None)
    )


@contextlib.contextmanager
def _following(model: nn.Module, inside: list[str]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for path, module in model.named_modules():

            def enter(*_: object, path: str = path) -> None:
                inside.append(path)

            def leave(*_: object) -> None:
                inside.pop()

            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def _is_float(one: object) -> bool:
    return isinstance(one, Tensor) and one.is_floating_point()
