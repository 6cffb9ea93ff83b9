"""A factor on the learning rate that schedules do not see."""

from __future__ import annotations

from torch.optim import Optimizer

from rksp.ground.errors import InputError


class RateScale:
    """Multiplies the rates of an optimizer's groups by `factor` while it steps.

    Schedules read and write the group's rate, some as a multiple of the last one. The rate is
    therefore restored after the step, bit for bit.

    Attributes:
        factor: Factor on the rate of every group; 1.0 changes nothing.

    Args:
        optimizer: A `torch.optim.Optimizer`, not a trainer's wrapper of one.

    Raises:
        InputError: `optimizer` is not a `torch.optim.Optimizer`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InputError(
                f"Interventions need a torch.optim.Optimizer, got {type(optimizer).__name__}; "
                "use a torch optimizer, or train without interventions."
            )
        self.factor = 1.0
        self._held: list[object] = []
        self._handles = (
            optimizer.register_step_pre_hook(self._lower),
            optimizer.register_step_post_hook(self._restore),
        )

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _lower(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        self._held = [group["lr"] for group in optimizer.param_groups]
        if self.factor != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * self.factor

    def _restore(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        for group, rate in zip(optimizer.param_groups, self._held, strict=True):
            group["lr"] = rate
        self._held = []
