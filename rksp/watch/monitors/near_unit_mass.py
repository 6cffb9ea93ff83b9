"""Near-unit mass: the spectra of the blocks during training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rksp.ground.errors import NotCovered
from rksp.models.anatomy.chains import block_paths, float_tensors
from rksp.spectra.dmd import LayerSpectrum, fit
from rksp.spectra.status import Status
from rksp.watch.moment import Moment, Phase
from rksp.watch.monitors.base import Monitor, Reading

STATES = 512
RANK = 32


class NearUnitMass(Monitor):
    """RKSP (arXiv 2602.22988) on the states of the sampled step's own forward pass.

    `rksp.spectra.dmd.fit` fits every block when its output leaves it, on at most `states` tokens of
    the first micro-batch, evenly spread, in the `rank` leading directions. The states of two blocks
    are never held at once. `near_unit_mass` and `expansive_mass` are read per block; the model's
    value is the mean over the trusted blocks. If the model trains with dropout, the fit includes
    it. Values then differ from those of `rksp score`, so compare them over time. A block is left
    out if it changes the shape of its states or if its fit is not OK, as for a block that still
    starts from zero. With too few states for every block the monitor is silent.
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
        """Find the blocks."""
        self._blocks = block_paths(model)
        self._clear()
        return None if self._blocks else "no list of blocks was found"

    def arm(self, model: nn.Module) -> Sequence[RemovableHandle]:
        """Put hooks on the inputs and outputs of the blocks."""
        self._clear()
        handles = []
        for path in self._blocks:
            block = model.get_submodule(path)
            handles.append(block.register_forward_pre_hook(self._before, with_kwargs=True))
            handles.append(block.register_forward_hook(self._hook(path)))
        return handles

    def read(self, moment: Moment) -> list[Reading]:
        """Return the masses of every trusted block and their means.

        Raises:
            NotCovered: The batch has too few states for every block.
        """
        spectra = [spectrum for spectrum in self._spectra if spectrum.status is Status.OK]
        if not spectra:
            statuses = {spectrum.status for spectrum in self._spectra}
            if statuses <= {Status.TOO_FEW_STATES, Status.RANK_DEFICIENT}:  # from the batch shape
                reasons = sorted(status.value for status in statuses) or ["no block ran"]
                raise NotCovered(f"no block gave a trustworthy spectrum: {', '.join(reasons)}")
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
        """Copy evenly spread states `[states, width]`, because the next block may add in place."""
        found = next((t for _, t in float_tensors(value) if t.dim() > 1), None)
        if found is None:
            return None
        flat = found.detach().flatten(0, -2)
        count = min(self.states, len(flat))
        return flat[torch.arange(count, device=flat.device) * len(flat) // count]
