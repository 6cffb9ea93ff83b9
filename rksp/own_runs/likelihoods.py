"""What all ladders together say of one response, made once and read for every target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rksp.classifiers.rates import RateMixture
from rksp.own_runs.observed import Observed
from rksp.own_runs.offsets import GRID, STEP, Path, kernel
from rksp.own_runs.spreads import Spreads

_ROUNDED = 2  # digits of the noise that is added: ladders with the same share a convolution
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
    """

    seen: Sequence[Observed]
    paths: Sequence[Path]
    centers: np.ndarray
    values: np.ndarray
    usual: np.ndarray
    within: np.ndarray
    of: _Likelihood

    @classmethod
    def make(
        cls,
        seen: Sequence[Observed],
        rates: Sequence[RateMixture],
        of: _Likelihood,
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
        )

    def for_target(
        self, path: Path, spreads: Spreads, surplus: float
    ) -> list[tuple[Path, np.ndarray]]:
        """Return what each ladder says of the target and where it stands.

        Args:
            path: Place of the target.
            spreads: Those of the target.
            surplus: What was measured of the target adds to what the prior says of its own model.
        """
        if not self.seen:
            return []
        values = self.values.copy()
        if surplus:
            for n, place in enumerate(self.paths):
                if (place[0], place[2]) == (path[0], path[2]):
                    values[n] = self.of(self.seen[n], self.centers[n] + surplus)
        noise = np.round(np.sqrt(self._extra(spreads)), _ROUNDED)
        found = values.copy()
        for amount in np.unique(noise):
            if amount >= STEP:
                rows = noise == amount
                found[rows] = values[rows] @ kernel(float(amount))
        return list(zip(self.paths, found, strict=True))

    def _extra(self, spreads: Spreads) -> np.ndarray:
        """Return the variance that is added to each ladder, `[ladders]`."""
        between = np.maximum(self.usual**2 - spreads.usual**2, 0.0)
        within = np.maximum(self.within**2 - spreads.noise**2, 0.0)
        return between + within
