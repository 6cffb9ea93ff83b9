"""What a labelled ladder, or a single run, says of the edge and of the best rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from rksp.classifiers.edge_inputs import EdgeInputs
from rksp.classifiers.edge_model import horizon_share
from rksp.own_runs.offsets import GRID, Path
from rksp.own_runs.spreads import SEED

LAPSE = 0.02  # chance that a run of a ladder ends against its edge: a seed, a logger, a bad batch
LONE_LAPSE = 0.1  # the same of a single run, of which no better one is known
MISTAKEN = 0.05  # chance that a whole ladder says nothing: another metric, another code
# Nats within which the best of a ladder may be any of its rates: seeds of short runs differ by
# more than those of long ones.
_FLAT_SHORT, _FLAT_LONG = 0.03, 0.005
_STILL, _WIDE = 1e-3, 0.6  # nats, and decades over which a real loss changes by more
_CAP = 1.0  # nats above the best; how far above a failed run ends says nothing
# Share of a ladder's rise and fall that may run against its order: of 651 real ladders 1 has more,
# of the same ladders with their losses shuffled 9 in 10.
_ORDERLY = 0.2
# Fields of the inputs that are no part of the recipe, and that measuring a model may refine.
_OF_THE_MODEL: dict[str, Any] = {"norm": "pre", "vocabulary": 2, "family": "", "init_std": None}
_OF_THE_MODEL |= {"is_parallel": False, "normalizes_branches": False, "is_made_up": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The runs of one model and recipe that differ in the rate, or in the seed.

    Attributes:
        name: For people.
        family: Of the model, such as llama.
        inputs: The shape and the recipe.
        log_rates: log10 of the nominal peak rates, ascending, `[runs]`.
        failed: 1 and 0; NaN where nobody can tell, `[runs]`.
        losses: Final losses in nats, NaN where there is none, `[runs]`.
        kept_apart: What else differs from other ladders, as text.
    """

    name: str
    family: str
    inputs: EdgeInputs
    log_rates: np.ndarray
    failed: np.ndarray
    losses: np.ndarray
    kept_apart: str = ""

    @property
    def is_ladder(self) -> bool:
        """Whether it has several rates."""
        return len(np.unique(self.log_rates)) > 1

    @property
    def shows_edge(self) -> bool:
        """Whether some of its rates trained and others failed."""
        return bool((self.failed == 0).any() and (self.failed == 1).any())

    @property
    def path(self) -> Path:
        """Its place in the tree of offsets, from the family to the ladder."""
        return path_of(self.family, self.inputs, self.kept_apart)

    @property
    def is_still(self) -> bool:
        """Whether its losses do not change with the rate at all, as a broken logger writes them."""
        rates, losses = self._by_rate()
        known = losses[np.isfinite(losses)]
        is_wide = len(known) >= 3 and float(np.ptp(rates)) >= _WIDE
        return is_wide and float(np.ptp(known)) < _STILL

    @property
    def is_orderly(self) -> bool:
        """Whether its losses fall to one best rate and rise beyond it, as real ladders do."""
        _, losses = self._by_rate()
        if np.isfinite(losses).sum() < 2 or len(losses) < 4:
            return True
        excess = np.minimum(np.where(np.isfinite(losses), losses, np.inf) - np.nanmin(losses), _CAP)
        steps = np.diff(excess)
        best = int(np.argmin(excess))
        against = steps[:best].clip(min=0).sum() - steps[best:].clip(max=0).sum()
        return bool(against <= max(2 * self._flat, _ORDERLY * np.abs(steps).sum()))

    def edge_likelihood(self, center: float) -> np.ndarray:
        """Return P(outcomes | edge at `center` + offset), `[grid]`.

        Every run is a noisy bound: it fails if its rate lies above its own edge, which seeds move.
        A ladder is thereby censored to an interval as fine as its grid, and a ladder whose runs
        disagree with each other is as vague as they are.
        """
        known = np.isfinite(self.failed)
        if not known.any():
            return np.ones(len(GRID))
        lapse = LAPSE if self.is_ladder else LONE_LAPSE
        distance = (self.log_rates[known, None] - center - GRID[None, :]) / SEED
        fails = lapse + (1 - 2 * lapse) * ndtr(distance)
        outcome = self.failed[known, None]
        return doubted(np.exp(np.log(np.where(outcome > 0, fails, 1 - fails)).sum(axis=0)))

    def best_likelihood(self, center: float) -> np.ndarray:
        """Return the likelihood that the best rate lies at `center` + offset, `[grid]`.

        A rate stands for all that are nearer to it than to its neighbours on the grid; the lowest
        and the highest stand for all beyond. Rates that ended within the tolerance share.
        """
        rates, losses = self._by_rate()
        if len(rates) < 2 or not np.isfinite(losses).any():
            return np.ones(len(GRID))
        excess = np.where(np.isfinite(losses), losses - np.nanmin(losses), np.inf)
        weight = np.exp(-0.5 * (excess / self._flat) ** 2)
        cells = np.searchsorted((rates[1:] + rates[:-1]) / 2, center + GRID)
        return doubted(weight[cells])

    @property
    def _flat(self) -> float:
        share = horizon_share(self.inputs.steps)
        return (1 - share) * _FLAT_SHORT + share * _FLAT_LONG

    def _by_rate(self) -> tuple[np.ndarray, np.ndarray]:
        """Return every rate once, and the mean loss of its seeds; NaN where one has none."""
        rates = np.unique(self.log_rates)
        means = [self.losses[self.log_rates == rate].mean() for rate in rates]
        return rates, np.array(means)


def path_of(family: str, inputs: EdgeInputs, kept_apart: str = "") -> Path:
    """Return the place of a model and a recipe in the tree of offsets."""
    recipe = replace(inputs, **_OF_THE_MODEL)
    return family, inputs.optimizer, f"{inputs.width}x{inputs.depth}", f"{recipe} {kept_apart}"


def doubted(likelihood: np.ndarray) -> np.ndarray:
    """Return a likelihood that may also say nothing: it then counts as its mean on the grid."""
    return (1 - MISTAKEN) * likelihood + MISTAKEN * likelihood.mean()
