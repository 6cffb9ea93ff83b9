"""The inputs of routers in the first micro-batch of a sampled step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import find_anatomy
from rksp.models.anatomy.routers import Router
from rksp.watch.moment import Moment
from rksp.watch.monitors.base import Monitor, Reading


class RouterMonitor(Monitor):
    """A monitor of router logits, recomputed in float32 from the inputs of the layer of experts.

    The return values of routers differ between models and releases, and fused expert kernels bypass
    them. Padding tokens count like others.
    """

    def bind(self, model: nn.Module) -> str | None:
        """Find the routers."""
        self._routers: tuple[Router, ...] = find_anatomy(model).routers
        self._seen: dict[str, object] = {}
        self.reset()
        return None if self._routers else "the model has no router"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Put hooks on the inputs of the layers of experts."""
        self._seen = {}
        return [
            router.block.register_forward_pre_hook(self._hook(router), with_kwargs=True)
            for router in self._routers
        ]

    def read(self, moment: Moment) -> list[Reading]:
        """Return the readings of all routers that ran."""
        seen, self._seen = self._seen, {}
        return [
            reading
            for router in self._routers
            if router.path in seen
            for reading in self.readings_of(router, seen[router.path], moment.step)
        ]

    @abstractmethod
    def measure(self, router: Router, logits: Tensor) -> object:
        """Return what to keep of logits `[tokens, experts]`, without tensors of the graph."""

    @abstractmethod
    def readings_of(self, router: Router, measured: Any, step: int) -> list[Reading]:
        """Return the readings of one router."""

    def _hook(self, router: Router):
        def before(module: nn.Module, args: tuple, kwargs: dict) -> None:
            states = first_tensor((args, kwargs))
            if states is None or router.path in self._seen:
                return  # a second pass: another micro-batch, or a recomputed one
            with torch.no_grad():
                self._seen[router.path] = self.measure(router, router.logits(states))

        return before
