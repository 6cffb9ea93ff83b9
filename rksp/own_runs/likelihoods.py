"""What all ladders together say of one response, made once and read for every target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.rates import RateMixture
from rksp.own_runs.observed import Observed
from rksp.own_runs.offsets import GRID, STEP, Path, kernel
from rksp.own_runs.slopes import learned_slopes
from rksp.own_runs.spreads import Spreads

_ROUNDED = 2  # digits of the noise that is added: ladders with the same share a convolution
_STILL = 1e-3  # decades by which a likelihood need not be moved
_Likelihood = Callable[[Observed, float], np.ndarray]  # of a ladder, at a center


@dataclass(frozen=True, kw_only=True)
class Likelihoods:
    """One response of every ladder.

    Attributes:
        seen: The ladders.
        paths: Their places.
        centers: What the prior says of each, `[ladders]`.
        values: Likelihoods of an offset from there, `[ladders, grid]`.
        usual, within: Spreads of the prior for each, `[ladders]`.
        of: Computes a likelihood.
        slopes: By how much errors differ for a decade of width, steps and batch, `[3]`.
    """

    seen: Sequence[Observed]
    paths: Sequence[Path]
    centers: np.ndarray
    values: np.ndarray
    usual: np.ndarray
    within: np.ndarray
    of: _Likelihood
    slopes: tuple[float, float, float]

    @classmethod
    def make(
        cls,
        seen: Sequence[Observed],
        rates: Sequence[RateMixture],
        of: _Likelihood,
        slopes: tuple[float, float, float],
    ) -> Likelihoods:
        """Return the likelihoods of ladders around what the prior says of each."""
        spreads = {id(r): Spreads.of(r, "adamw", 1.0) for r in rates}
        centers = [r.location for r in rates]
        values = [of(one, center) for one, center in zip(seen, centers, strict=True)]
        return cls(
            seen=seen,
            paths=[one.path for one in seen],
            centers=np.array(centers),
            values=np.array(values).reshape(len(seen), len(GRID)),
            usual=np.array([spreads[id(r)].usual for r in rates]),
            within=np.array([spreads[id(r)].noise for r in rates]),
            of=of,
            slopes=slopes,
        )

    def for_target(
        self, inputs: EdgeInputs, path: Path, spreads: Spreads, surplus: float
    ) -> tuple[list[tuple[Path, np.ndarray]], float]:
        """Return what each ladder says of the target and where it stands.

        A ladder of another size has another error, by slopes that the ladders share. What they
        leave unknown of the target is the second value, a standard deviation in decades.

        Args:
            inputs: Of the target.
            path: Its place.
            spreads: Of the target.
            surplus: What was measured of the target adds to what the prior says of its own model.
        """
        if not self.seen:
            return [], 0.0
        values = self.values.copy()
        if surplus:
            for n, place in enumerate(self.paths):
                if (place[0], place[2]) == (path[0], path[2]):
                    values[n] = self.of(self.seen[n], self.centers[n] + surplus)
        extra = self._extra(spreads)
        away = self._sizes - _sizes(inputs)
        slopes = learned_slopes(values, self.paths, path, away, extra, spreads, self.slopes)
        for at in np.flatnonzero(np.abs(slopes.shifts) > _STILL):
            values[at] = np.interp(GRID + slopes.shifts[at], GRID, values[at])
        noise = np.round(np.sqrt(extra), _ROUNDED)
        found = values.copy()
        for amount in np.unique(noise):
            if amount >= STEP:
                rows = noise == amount
                found[rows] = values[rows] @ kernel(float(amount))
        return list(zip(self.paths, found, strict=True)), slopes.unsure

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.array([_sizes(one.inputs) for one in self.seen])

    def _extra(self, spreads: Spreads) -> np.ndarray:
        """Return the variance that is added to each ladder, `[ladders]`."""
        between = np.maximum(self.usual**2 - spreads.usual**2, 0.0)
        within = np.maximum(self.within**2 - spreads.noise**2, 0.0)
        return between + within


def _sizes(inputs: EdgeInputs) -> np.ndarray:
    """Return the logarithms of width, steps and batch, in the order of the slopes."""
    return np.log10([inputs.width, inputs.steps, inputs.batch_tokens])
