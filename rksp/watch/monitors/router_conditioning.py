"""Router conditioning: how much of a router's weight all experts share."""

from __future__ import annotations

import math

import torch
from torch import nn

from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.routers import Router
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading


class RouterConditioning(Monitor):
    """What remains of a router's rows w_i without their mean w̄ (arXiv 2606.28116, section 3).

    Two definitions are in use, and both are read. `router_cond_ratio` is max ‖w_i − w̄‖ / ‖w̄‖. It
    is about √(E−1) for independent rows and falls towards 0 when a shared mean dominates.
    `router_centered_energy` is Σ‖w_i‖² − E‖w̄‖². For inputs of unit covariance this energy over 2E
    (`concentration`) approximates ln E minus routing entropy.
    """

    name = "router-conditioning"
    phase = Phase.UPDATE
    default_every = 10
    quantities = ("router_cond_ratio", "router_centered_energy")
    source = "arXiv 2606.28116"

    def bind(self, model: nn.Module) -> str | None:
        """Find the routers."""
        self._routers: tuple[Router, ...] = find_anatomy(model).routers
        return None if self._routers else "the model has no router"

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        """Return the two quantities of every router."""
        readings = []
        for router in self._routers:
            rows = router.rows()
            mean = rows.mean(0)
            centered = (rows - mean).square().sum(-1)
            energy, largest = float(centered.sum()), float(centered.max().sqrt())
            values = {"router_centered_energy": energy}
            if float(mean.norm()) > 0:
                values["router_cond_ratio"] = largest / float(mean.norm())
            detail = {"concentration": energy / (2 * len(rows))}
            readings += [
                self.reading(quantity, moment.step, value, layer=router.path, **detail)
                for quantity, value in values.items()
                if math.isfinite(value)
            ]
        return readings
