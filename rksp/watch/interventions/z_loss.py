"""z-loss: a penalty on the log-partition function of output logits and routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import InputError, NotCovered
from rksp.models.anatomy.chains import first_tensor
from rksp.models.anatomy.parts import Router, find_anatomy
from rksp.models.anatomy.weight_view import at_least_float
from rksp.watch.interventions.base import Intervention
from rksp.watch.interventions.ledger import record_means
from rksp.watch.moment import Moment


class ZLoss(Intervention):
    """Adds `output` · mean(log Z²) of the output logits and `router` times that of each router.

    Sources: output, 1e-4, PaLM (Chowdhery et al., 2022, §5); routers, 1e-3, ST-MoE (Zoph et al.,
    2022, eq. 5), the mean over each router's tokens summed over routers. log Z is taken over all
    positions, padding included, in float32. Router logits are recomputed from the states that enter
    the router's block, because the return values of routers change between releases. Routers with
    sigmoid scores have no log Z and are left out.

    The caller divides the penalty by the number of micro-batches together with the loss.

    Args:
        output: Coefficient of the output logits; 0 leaves them out.
        router: Coefficient of the routers; 0 leaves them out.
    """

    name = "z_loss"

    def __init__(self, output: float = 1e-4, router: float = 1e-3) -> None:
        super().__init__()
        if output < 0 or router < 0 or output + router == 0:
            raise InputError(
                "z-loss needs coefficients >= 0, at least one of them above 0, got "
                f"output={output}, router={router}."
            )
        self.output, self.router = output, router
        self._routers: list[Router] = []
        self._terms: dict[str, list[Tensor]] = {"output": [], "router": []}
        self._noted: list[dict[str, Tensor]] = []

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Find the routers.

        Raises:
            NotCovered: Only routers have a coefficient, and the model has none.
        """
        routers = find_anatomy(model).routers if self.router else ()
        self._routers = [router for router in routers if not router.is_sigmoid]
        if not self.output and not self._routers:
            raise NotCovered(
                "z-loss was given a coefficient for routers alone, and this model has none; "
                "give output a coefficient or choose another intervention."
            )

    def arm(self, moment: Moment) -> Sequence[RemovableHandle]:
        """Capture log Z of the output and of the routers."""
        self._noted.clear()
        # Activation checkpointing runs the blocks again in the backward pass. States captured
        # there must not reach the next micro-batch.
        hooks = [moment.model.register_forward_pre_hook(lambda *_: self._clear())]
        hooks += [
            router.block.register_forward_pre_hook(
                self._of_router(moment.model.get_submodule(router.path)), with_kwargs=True
            )
            for router in self._routers
        ]
        if self.output:
            hooks.append(moment.model.register_forward_hook(self._of_output))
        return hooks

    def _of_output(self, module: nn.Module, args: tuple, output: object) -> None:
        logits = getattr(output, "logits", None)
        logits = first_tensor(output) if logits is None else logits
        if torch.is_grad_enabled() and logits is not None:
            self._terms["output"].append(_mean_square_log_z(logits))

    def _of_router(self, router: Any):
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            x = first_tensor((args, kwargs))
            if not torch.is_grad_enabled() or x is None:
                return
            bias = getattr(router, "bias", None)
            bias = None if bias is None else at_least_float(bias)
            with torch.autocast(x.device.type, enabled=False):
                logits = F.linear(at_least_float(x), at_least_float(router.weight), bias)
            self._terms["router"].append(_mean_square_log_z(logits))

        return hook

    def penalty(self, moment: Moment) -> Tensor | None:
        """Return the weighted sum of the captured terms, or None."""
        weights = {"output": self.output, "router": self.router}
        sums = {name: torch.stack(terms).sum() for name, terms in self._terms.items() if terms}
        self._clear()
        if not sums:
            return None
        self._noted.append({f"{name}_log_z_square": term.detach() for name, term in sums.items()})
        return torch.stack([weights[name] * term for name, term in sums.items()]).sum()

    def before_update(self, moment: Moment) -> None:
        """Record the step's action, now that the backward pass has waited for the numbers."""
        record_means(self, moment, "added a penalty on log Z to the loss", self._noted)
        self._noted.clear()

    def _clear(self) -> None:
        for terms in self._terms.values():
            terms.clear()


def _mean_square_log_z(logits: Tensor) -> Tensor:
    return at_least_float(logits).logsumexp(-1).square().mean()
