"""Router similarity: whether the rows of a router grow alike."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from rksp.models.anatomy.parts import Router, find_anatomy
from rksp.moment import Moment, Phase
from rksp.monitors.base import Monitor, Reading


class RouterSimilarity(Monitor):
    """Mean cosine between pairs of router rows: `router_similarity` (arXiv 2606.28116, eq. 7).

    In [−1/(E−1), 1], near 0 at the start; it drifts up when a few directions win. A router with a
    zero row has none yet. Computed from the mean unit row ū as (E‖ū‖² − 1)/(E − 1).
    """

    name: ClassVar[str] = "router-similarity"
    phase: ClassVar[Phase] = Phase.UPDATE
    default_every: ClassVar[int] = 10
    quantities: ClassVar[tuple[str, ...]] = ("router_similarity",)
    source: ClassVar[str] = "arXiv 2606.28116"

    def bind(self, model: nn.Module) -> str | None:
        self._routers: tuple[Router, ...] = find_anatomy(model).routers
        return None if self._routers else "the model has no router"

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        readings = []
        for router in self._routers:
            rows = router.rows()
            if len(rows) > 1 and bool((rows.norm(dim=-1) > 0).all()):
                readings.append(
                    Reading(
                        monitor=self.name,
                        quantity="router_similarity",
                        step=moment.step,
                        layer=router.path,
                        value=float(mean_cosine(rows)),
                    )
                )
        return readings


def mean_cosine(rows: Tensor) -> Tensor:
    """Mean cosine over pairs of different rows of `[rows, width]`, a scalar."""
    count = len(rows)
    units = rows / rows.norm(dim=-1, keepdim=True)
    return (count * units.mean(0).square().sum() - 1) / (count - 1)
