"""What a labelled ladder, or a single run, says of the edge and of the best rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rksp.classifiers.edge_estimate import EdgeEstimate
from rksp.classifiers.edge_inputs import EdgeInputs, horizon_share
from rksp.own_runs.between import Reading, crossing, lowest
from rksp.own_runs.labelled import LabelledRuns
from rksp.own_runs.offsets import GRID, Path
from rksp.own_runs.spreads import SEED

LAPSE = 0.02  # chance that a run of a ladder ends against its edge: a seed, a logger, a bad batch
LONE_LAPSE = 0.1  # the same of a single run, of which no better one is known
MISTAKEN = 0.05  # chance that a whole ladder says nothing: another metric, another code
# Nats within which the best of a ladder may be any of its rates: seeds of short runs differ by
# more than those of long ones.
_FLAT_SHORT, _FLAT_LONG = 0.03, 0.005
_NO_WEIGHT = 1e-6  # of a rate that was surely not the best
_NEAR, _MOST_LOST = 1.01, 1.0  # decades below the best rate, and nats, that are looked at
# Fields of the inputs that are no part of the recipe, and that measuring a model may refine.
_OF_THE_MODEL: dict[str, Any] = {"norm": "pre", "vocabulary": 2, "family": "", "init_std": None}
_OF_THE_MODEL |= dict.fromkeys(
    ("is_parallel", "normalizes_branches", "normalizes_qk", "masks", "is_made_up"), False
)


# The normal distribution function, between these a line: scipy's takes half a second to import.
_PLACES = np.linspace(-8.0, 8.0, 16_001)
_CHANCES = np.array([0.5 * math.erfc(-place / math.sqrt(2)) for place in _PLACES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(LabelledRuns):
    """Runs from random weights.

    Attributes:
        family: Of the model, such as llama.
        inputs: The shape and the recipe.
        kept_apart: What else differs from other ladders, as text.
    """

    family: str
    inputs: EdgeInputs
    kept_apart: str = ""

    @property
    def path(self) -> Path:
        """Its place in the tree of offsets, from the family to the ladder."""
        return path_of(self.family, self.inputs, self.kept_apart)

    def edge_likelihood(self, center: float) -> np.ndarray:
        """Return P(outcomes | edge at `center` + offset), `[grid]`.

        Every run is a noisy bound: it fails if its rate lies above its own edge, which seeds move.
        A ladder is thereby censored to an interval as fine as its grid, and a ladder whose runs
        disagree with each other is as vague as they are. Where its loss rises through the margin
        instead of breaking, it tells where in the interval.
        """
        known = np.isfinite(self.failed)
        if not known.any():
            return np.ones(len(GRID))
        lapse = LAPSE if self.is_ladder else LONE_LAPSE
        distance = (self.log_rates[known, None] - center - GRID[None, :]) / SEED
        fails = lapse + (1 - 2 * lapse) * _below(distance)
        outcome = self.failed[known, None]
        found = np.log(np.where(outcome > 0, fails, 1 - fails)).sum(axis=0)
        read = self._crossing()
        if read is not None:
            spread = math.hypot(read.unsure, SEED)
            found = found - 0.5 * ((center + GRID - read.at) / spread) ** 2
        return doubted(np.exp(found))

    def _crossing(self) -> Reading | None:
        """Return where the loss passes the margin; None where its labels say otherwise."""
        rates, excess = self._known()
        read = crossing(rates, excess, self.flat) if len(rates) > 2 else None
        if read is None:
            return None
        below, above = self.failed[self.log_rates < read.at], self.failed[self.log_rates > read.at]
        agrees = not (below == 1).any() and bool((above == 1).any())
        return read if agrees else None

    def _known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return every rate with a loss or a failure, and its nats above the best, inf for none."""
        rates, losses = self.by_rate()
        has_loss = np.isfinite(losses)
        if not has_loss.any():
            return rates[:0], losses[:0]
        kept = has_loss | np.isin(rates, self.log_rates[self.failed == 1])
        excess = np.where(has_loss, losses - np.nanmin(losses), np.inf)
        return rates[kept], excess[kept]

    def best_likelihood(self, center: float) -> np.ndarray:
        """Return the likelihood that the best rate lies at `center` + offset, `[grid]`.

        The losses beside a rate tell where near it the lowest one lies; the lowest and the highest
        rate stand for all beyond. Rates that ended within the tolerance share.
        """
        rates, excess = self._known()
        if len(rates) < 2:
            return np.ones(len(GRID))
        weight = np.exp(-0.5 * (excess / self.flat) ** 2)
        at = center + GRID
        found = np.where(at < (rates[0] + rates[1]) / 2, weight[0], 0.0)
        found = found + np.where(at >= (rates[-2] + rates[-1]) / 2, weight[-1], 0.0)
        for index in range(1, len(rates) - 1):
            if weight[index] > _NO_WEIGHT:
                read = lowest(rates, excess, index, self.flat)
                found = found + weight[index] * np.exp(-0.5 * ((at - read.at) / read.unsure) ** 2)
        return doubted(found)

    def lost_below(self, said: EdgeEstimate) -> tuple[float, float]:
        """Return the nats lost up to a decade below the best rate, and those that are expected.

        Only a ladder whose lowest rate is not its best shows them.
        """
        rates, losses = self.by_rate()
        if len(rates) < 2 or not np.isfinite(losses).any():
            return 0.0, 0.0
        best = int(np.nanargmin(losses))
        near = np.isfinite(losses) & (rates < rates[best]) & (rates >= rates[best] - _NEAR)
        lost = np.minimum(losses[near] - losses[best], _MOST_LOST)
        expected = np.interp(rates[near] - rates[best], said.knots, said.below)
        return float(lost.sum()), float(np.minimum(expected, _MOST_LOST).sum())

    @property
    def flat(self) -> float:
        """Nats within which the best of a ladder may be any of its rates."""
        share = horizon_share(self.inputs.steps)
        return (1 - share) * _FLAT_SHORT + share * _FLAT_LONG


def path_of(family: str, inputs: EdgeInputs, kept_apart: str = "") -> Path:
    """Return the place of a model and a recipe in the tree of offsets."""
    recipe = replace(inputs, **_OF_THE_MODEL)
    return family, inputs.optimizer, f"{inputs.width}x{inputs.depth}", f"{recipe} {kept_apart}"


def _below(distance: np.ndarray) -> np.ndarray:
    """Return the chance of a standard normal value below each of these."""
    return np.interp(distance, _PLACES, _CHANCES)


def doubted(likelihood: np.ndarray) -> np.ndarray:
    """Return a likelihood that may also say nothing: it then counts as its mean on the grid."""
    return (1 - MISTAKEN) * likelihood + MISTAKEN * likelihood.mean()
