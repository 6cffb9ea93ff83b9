"""Router similarity: do the rows of a router become alike?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.routers import Router
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading


class RouterSimilarity(Monitor):
    """Mean cosine between pairs of router rows: `router_similarity` (arXiv 2606.28116, eq. 7).

    The value is in [−1/(E−1), 1] and near 0 at the start; it rises when a few directions win. A
    router with a zero row has no reading. It is computed from the mean unit row ū as
    (E‖ū‖² − 1)/(E − 1).
    """

    name = "router-similarity"
    phase = Phase.UPDATE
    default_every = 10
    quantities = ("router_similarity",)
    source = "arXiv 2606.28116"

    def bind(self, model: nn.Module) -> str | None:
        """Find the routers."""
        self._routers: tuple[Router, ...] = find_anatomy(model).routers
        return None if self._routers else "the model has no router"

    @torch.no_grad()
    def read(self, moment: Moment) -> list[Reading]:
        """Return the similarity of every router."""
        readings = []
        for router in self._routers:
            rows = router.rows()
            if len(rows) > 1 and bool((rows.norm(dim=-1) > 0).all()):
                value = float(mean_cosine(rows))
                readings.append(
                    self.reading("router_similarity", moment.step, value, layer=router.path)
                )
        return readings


def mean_cosine(rows: Tensor) -> Tensor:
    """Return the mean cosine over pairs of different rows of `[rows, width]`, a scalar."""
    count = len(rows)
    units = rows / rows.norm(dim=-1, keepdim=True)
    return (count * units.mean(0).square().sum() - 1) / (count - 1)
