"""Labelled runs that differ in the rate alone, and what they say of the edge and the best rate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rksp.classifiers.edge_inputs import EdgeInputs, horizon_share
from rksp.classifiers.edge_model import EdgeEstimate
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs
from rksp.classifiers.fine_tuning.model import between_neighbours
from rksp.own_runs.offsets import GRID, SEED, Place
from rksp.own_runs.outcome import OutcomePolicy

# Standard deviations, as shares of the step between two rates. Real ladders of which every second
# to sixth rate was taken away are read as well as `READ`; `EVEN` is that of any place in the step.
# `python -m lab eval --real` prints both again.
READ, EVEN = 0.2, 12**-0.5
_BOWL = 0.5  # nats above the best, beyond which a loss says nothing of the curve's lowest point
_SUDDEN = 1.0  # nats: a run that ends this far above the best broke, and does not show how near
_STILL, _WIDE = 1e-3, 0.6  # nats, and decades over which a real loss changes by more
_CAP = 1.0  # nats above the best; how far above a failed run ends says nothing
# Share of a ladder's rise and fall that may run against its order: of 651 real ladders 1 has more,
# of the same ladders with their losses shuffled 9 in 10.
_ORDERLY = 0.2
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
class Reading:
    """A place between the rates of a ladder.

    Attributes:
        at: log10 of the rate.
        unsure: Its standard deviation, decades.
    """

    at: float
    unsure: float


def lowest(rates: np.ndarray, excess: np.ndarray, index: int, flat: float) -> Reading:
    """Return where the loss is lowest if that is nearer to this rate than to its neighbours.

    It is the lowest point of the parabola through the three losses, in the logarithm of the rate.
    Where they differ by no more than seeds do, it may be anywhere.

    Args:
        rates: log10, ascending, `[rates]`.
        excess: Nats above the best; inf where a run broke, `[rates]`.
        index: Of a rate that has neighbours.
        flat: Nats by which seeds differ.
    """
    left, here, right = rates[index - 1 : index + 2]
    first, middle, last = np.minimum(excess[index - 1 : index + 2], _BOWL)
    low, high = (left + here) / 2, (here + right) / 2
    step = high - low
    falls, rises = (middle - first) / (here - left), (last - middle) / (right - here)
    bend = (rises - falls) / (right - left)
    unsure = np.hypot(READ, flat / (2 * bend * step**2)) if bend > 0 else np.inf
    if unsure >= EVEN:
        return Reading(at=(low + high) / 2, unsure=EVEN * step)
    slope = (falls * (right - here) + rises * (here - left)) / (right - left)
    return Reading(at=float(np.clip(here - slope / (2 * bend), low, high)), unsure=unsure * step)


def crossing(rates: np.ndarray, excess: np.ndarray, flat: float) -> Reading | None:
    """Return where the loss passes the margin of a failure, between the last rate that trained.

    None where it does not, where the first failure broke, which comes at once, or where seeds
    differ by more than the two losses do.

    Args:
        rates: log10, ascending, `[rates]`.
        excess: Nats above the best; inf where a run broke, `[rates]`.
        flat: Nats by which seeds differ.
    """
    margin = OutcomePolicy().margin
    above = np.flatnonzero((np.arange(len(rates)) > np.argmin(excess)) & (excess > margin))
    if not len(above) or excess[above[0]] >= _SUDDEN:
        return None
    failed = int(above[0])
    rise, step = excess[failed] - excess[failed - 1], rates[failed] - rates[failed - 1]
    unsure = np.hypot(READ, flat / rise)
    if unsure >= EVEN:
        return None
    at = rates[failed - 1] + step * (margin - excess[failed - 1]) / rise
    return Reading(at=float(at), unsure=float(unsure * step))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRuns(ABC):
    """The runs of one model and recipe that differ in the rate, or in the seed.

    Attributes:
        name: For people.
        log_rates: log10 of the nominal peak rates, ascending, `[runs]`.
        failed: 1 and 0; NaN where nobody can tell, `[runs]`.
        losses: Final losses in nats, NaN where there is none, `[runs]`.
    """

    name: str
    log_rates: np.ndarray
    failed: np.ndarray
    losses: np.ndarray

    @property
    def is_ladder(self) -> bool:
        """Whether it has several rates."""
        return len(np.unique(self.log_rates)) > 1

    @property
    def shows_edge(self) -> bool:
        """Whether some of its rates trained and others failed."""
        return bool((self.failed == 0).any() and (self.failed == 1).any())

    @property
    def bracket(self) -> tuple[float, float]:
        """log10 of the rates between which the edge lies, infinite where a side is open.

        They are the lowest failure above the best run, and the highest rate below it that passed.
        """
        above = self.log_rates > (-math.inf if self.log_best is None else self.log_best)
        failing = self.log_rates[(self.failed == 1) & above]
        high = float(failing.min()) if len(failing) else math.inf
        passing = self.log_rates[(self.failed == 0) & (self.log_rates < high)]
        return float(passing.max()) if len(passing) else -math.inf, high

    @property
    def log_best(self) -> float | None:
        """log10 of the rate of the lowest loss, seeds averaged; None without a loss."""
        rates, losses = self.by_rate()
        return float(rates[int(np.nanargmin(losses))]) if np.isfinite(losses).any() else None

    @property
    @abstractmethod
    def flat(self) -> float:
        """Nats within which the best of a ladder may be any of its rates."""

    @property
    def is_still(self) -> bool:
        """Whether its losses do not change with the rate at all, as a broken logger writes them."""
        rates, losses = self.by_rate()
        known = losses[np.isfinite(losses)]
        is_wide = len(known) >= 3 and float(np.ptp(rates)) >= _WIDE
        return is_wide and float(np.ptp(known)) < _STILL

    @property
    def is_orderly(self) -> bool:
        """Whether its losses fall to one best rate and rise beyond it, as real ladders do."""
        _, losses = self.by_rate()
        if np.isfinite(losses).sum() < 2 or len(losses) < 4:
            return True
        excess = np.minimum(np.where(np.isfinite(losses), losses, np.inf) - np.nanmin(losses), _CAP)
        steps = np.diff(excess)
        best = int(np.argmin(excess))
        against = steps[:best].clip(min=0).sum() - steps[best:].clip(max=0).sum()
        return bool(against <= max(2 * self.flat, _ORDERLY * np.abs(steps).sum()))

    def by_rate(self) -> tuple[np.ndarray, np.ndarray]:
        """Return every rate once, and the mean loss of its seeds; NaN where one has none."""
        rates, of = np.unique(self.log_rates, return_inverse=True)
        return rates, np.bincount(of, weights=self.losses) / np.bincount(of)


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
    def path(self) -> Place:
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
        fails = lapse + (1 - 2 * lapse) * np.interp(distance, _PLACES, _CHANCES)
        outcome = self.failed[known, None]
        found = np.log(np.where(outcome > 0, fails, 1 - fails)).sum(axis=0)
        read = self._crossing()
        if read is not None:
            spread = math.hypot(read.unsure, SEED)
            found = found - 0.5 * ((center + GRID - read.at) / spread) ** 2
        return _doubted(np.exp(found))

    def _crossing(self) -> Reading | None:
        rates, excess = self._known()
        read = crossing(rates, excess, self.flat) if len(rates) > 2 else None
        if read is None:
            return None
        below, above = self.failed[self.log_rates < read.at], self.failed[self.log_rates > read.at]
        agrees = not (below == 1).any() and bool((above == 1).any())
        return read if agrees else None

    def _known(self) -> tuple[np.ndarray, np.ndarray]:
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
        found += np.where(at >= (rates[-2] + rates[-1]) / 2, weight[-1], 0.0)
        for index in range(1, len(rates) - 1):
            if weight[index] > _NO_WEIGHT:
                read = lowest(rates, excess, index, self.flat)
                found += weight[index] * np.exp(-0.5 * ((at - read.at) / read.unsure) ** 2)
        return _doubted(found)

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


def path_of(family: str, inputs: EdgeInputs, kept_apart: str = "") -> Place:
    """Return the place of a model and a recipe in the tree of offsets."""
    recipe = replace(inputs, **_OF_THE_MODEL)
    return family, inputs.optimizer, f"{inputs.width}x{inputs.depth}", f"{recipe} {kept_apart}"


def _doubted(likelihood: np.ndarray) -> np.ndarray:
    found: np.ndarray = (1 - MISTAKEN) * likelihood + MISTAKEN * likelihood.mean()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned(LabelledRuns):
    """Runs from trained weights.

    Attributes:
        inputs: Of the model of fine-tuning, without a source or a model.
    """

    flat: ClassVar[float] = 0.01  # of held-out losses of a short run
    inputs: FineTuningInputs

    @property
    def edge(self) -> tuple[float, float] | None:
        """The `bracket`; None where no run tells."""
        return self.bracket if any(map(math.isfinite, self.bracket)) else None

    @property
    def best(self) -> tuple[float, float] | None:
        """log10 of the rates between which the best one lies; None where no ladder tells."""
        rates, losses = self.by_rate()
        known = np.isfinite(losses)
        if len(rates) < 2 or not known.any():
            return None
        flat = np.flatnonzero(known & (losses <= np.nanmin(losses) + self.flat))
        ends = [between_neighbours(rates.tolist(), int(n)) for n in (flat[0], flat[-1])]
        low, high = ends[0][0], ends[1][1]
        return (low, high) if math.isfinite(low) or math.isfinite(high) else None
