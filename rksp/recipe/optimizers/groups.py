"""What the groups of torch's optimizers hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters and the options that they share, as they stand now; None of what is not there."""

    params: list[nn.Parameter]
    rate: float  # 0 where the optimizer has none
    initial: float | None  # the rate that a schedule of torch scales
    weight_decay: float | None
    momentum: float | None
    betas: tuple[float, float] | None
    eps: float | None
    is_fused: bool


def groups_of(*optimizers: Optimizer) -> Iterator[Group]:
    """Yield the groups of optimizers, in their order."""
    for held in (group for one in optimizers for group in one.param_groups):
        betas, initial = held.get("betas"), held.get("initial_lr")
        yield Group(
            params=held["params"],
            rate=float(held.get("lr") or 0.0),
            initial=None if initial is None else float(initial),
            weight_decay=_number(held.get("weight_decay")),
            momentum=_number(held.get("momentum")),
            betas=None if betas is None else (float(betas[0]), float(betas[1])),
            eps=_number(held.get("eps")),
            is_fused=bool(held.get("fused")),
        )


def parameters_of(*optimizers: Optimizer) -> Iterator[nn.Parameter]:
    """Yield the parameters that optimizers move."""
    return (p for one in optimizers for group in one.param_groups for p in group["params"])


def highest_rate(*optimizers: Optimizer) -> float:
    """Return the highest learning rate of a group; 0 without one."""
    return max((group.rate for group in groups_of(*optimizers)), default=0.0)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
