"""Fault: routers train without the losses that balance them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from rksp.ground.errors import InputError, NotCovered
from rksp.ground.text import words
from rksp.watch.faults.base import Fault
from rksp.watch.moment import Moment

# Weights of the balance loss and of the routers' z-loss, in the configurations of transformers.
COEFFICIENTS = words(
    "router_aux_loss_coef router_z_loss_coef moe_aux_loss_coeff aux_loss_alpha aux_loss_coef "
    "z_loss_coef"
)


class AuxOff(Fault):
    """Sets the coefficients of the routers' auxiliary losses to zero.

    The fault changes configurations and the modules that copied the coefficients at construction.

    Args:
        step: The first step without the losses.
    """

    name = "aux_off"

    def __init__(self, step: int = 0) -> None:
        if step < 0:
            raise InputError(f"Fault 'aux_off' needs step >= 0, got step={step}.")
        self.step = step
        self._switches: list[Callable[[], None]] = []

    def bind(self, model: nn.Module, *, seed: int) -> None:
        """Find the coefficients that the model reads.

        Raises:
            NotCovered: The model has no auxiliary loss.
        """
        self._switches = [switch for module in model.modules() for switch in _switches(module)]
        if not self._switches:
            raise NotCovered(
                "Fault 'aux_off' needs routers with an auxiliary loss, and this model trains "
                "without one; choose another fault or give the loss a coefficient."
            )

    def arm(self, moment: Moment) -> tuple[()]:
        """Set the coefficients to zero from `step` on."""
        if moment.step >= self.step:
            for switch in self._switches:
                switch()
            self._switches = []
        return ()


def _switches(module: nn.Module) -> list[Callable[[], None]]:
    """Return functions that set the coefficients that a module reads to zero."""
    config: Any = getattr(module, "config", None)
    if hasattr(module, "aux_loss") and hasattr(config, "model_copy"):  # frozen and shared
        names = [name for name in COEFFICIENTS if getattr(config, name, 0.0)]
        zeros = config.model_copy(update=dict.fromkeys(names, 0.0))
        return [lambda: setattr(module, "config", zeros)] if names else []
    owners: list[Any] = [module]
    if config is not None and not hasattr(config, "model_copy"):
        owners += [config, getattr(config, "text_config", None)]
    return [
        partial(setattr, owner, name, 0.0)
        for owner in owners
        for name in COEFFICIENTS
        if isinstance(getattr(owner, name, None), float) and getattr(owner, name)
    ]
