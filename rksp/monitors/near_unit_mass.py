"""Near-unit mass: the spectra of the blocks while they train."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.errors import NotCovered
from rksp.models.anatomy.chains import block_paths, float_tensors
from rksp.moment import Moment, Phase
from rksp.monitors.base import Monitor, Reading
from rksp.spectra.dmd import LayerSpectrum, fit
from rksp.spectra.status import Status

STATES = 512
RANK = 32


class NearUnitMass(Monitor):
    """RKSP (arXiv 2602.22988) on the states of the sampled step's own forward pass.

    Every block is fitted by `rksp.spectra.dmd.fit` as its output leaves it, on at most `states`
    tokens of the first micro-batch, evenly spread, in the `rank` leading directions; nothing holds
    two blocks' states. `near_unit_mass` and `expansive_mass` per block, and their mean over the
    blocks that can be trusted as the whole model's. Dropout, where the model trains with it, is
    part of what is fitted, so values differ from those of `rksp score`; compare them over time.
    A block that changes the shape of its states is left out, and so is one whose fit is not OK,
    such as one that still starts from zero; with too few states for any, the monitor is silent.
    """

    name = "near-unit-mass"
    phase = Phase.GRADIENT
    default_every = 100
    quantities = ("near_unit_mass", "expansive_mass")
    source = "RKSP, arXiv 2602.22988"

    def __init__(
        self,
        *,
        every: PositiveInt | None = None,
        states: PositiveInt = STATES,
        rank: PositiveInt = RANK,
    ) -> None:
        super().__init__(every=every)
        self.states, self.rank = states, rank

    def bind(self, model: nn.Module) -> str | None:
        self._blocks = block_paths(model)
        self._clear()
        return None if self._blocks else "no list of blocks was found"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        self._clear()
        handles = []
        for path in self._blocks:
            block = model.get_submodule(path)
            handles.append(block.register_forward_pre_hook(self._before, with_kwargs=True))
            handles.append(block.register_forward_hook(self._hook(path)))
        return handles

    def read(self, moment: Moment) -> list[Reading]:
        spectra = [spectrum for spectrum in self._spectra if spectrum.status is Status.OK]
        if not spectra:
            statuses = {spectrum.status for spectrum in self._spectra}
            if statuses <= {Status.TOO_FEW_STATES, Status.RANK_DEFICIENT}:  # of the batch's shape
                reasons = sorted(status.value for status in statuses) or ["no block ran"]
                raise NotCovered(f"no block gave a spectrum to be trusted: {', '.join(reasons)}")
            return []
        readings = []
        for quantity in ("near_unit_mass", "expansive_mass"):
            values = {spectrum.name: getattr(spectrum, quantity) for spectrum in spectra}
            mean = statistics.fmean(values.values())
            for layer, value in {"": mean, **values}.items():
                detail = {"blocks": float(len(spectra))} if not layer else {}
                readings.append(self.reading(quantity, moment.step, value, layer=layer, **detail))
        self._clear()
        return readings

    def _clear(self) -> None:
        self._entering: Tensor | None = None
        self._spectra: list[LayerSpectrum] = []

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self._entering = self._rows((args, kwargs))

    def _hook(self, path: str):
        def after(module: nn.Module, args: tuple, output: object) -> None:
            x, y, self._entering = self._entering, self._rows(output), None
            if x is not None and y is not None and x.shape == y.shape:
                spectrum = fit(x, y, rank=min(self.rank, x.shape[1]), extras=False, name=path)
                self._spectra.append(spectrum)

        return after

    def _rows(self, value: object) -> Tensor | None:
        """A copy of evenly spread states `[states, width]`; the next block may add in place."""
        found = next((t for _, t in float_tensors(value) if t.dim() > 1), None)
        if found is None:
            return None
        flat = found.detach().flatten(0, -2)
        count = min(self.states, len(flat))
        return flat[torch.arange(count, device=flat.device) * len(flat) // count]
