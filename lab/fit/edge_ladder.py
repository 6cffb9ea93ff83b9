"""A ladder of learning rates as the model of the edge sees it, from the lab or from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rksp.classifiers.edge_inputs import EdgeInputs

LAB, PUBLISHED = "lab", "published"  # sources that are not a repository
OPENLM = "openlm"  # runs at one rate that differ in the warm-up (Gadre et al., 2024); never fitted
PAIRS = "pairs"  # the group of the lab's ladders of plans of pairs
# What `changed` says of runs of a team that bound its edge: rates that trained, one that failed.
BOUNDS = TRAINED, FAILED = ("rates that trained", "a rate that failed")
BRIDGE = "bridge"  # the group of the lab's ladders of ten times the steps
MARGIN = 0.25  # nats above the best from which a run above the best rate has failed


def log_rates(rates: Iterable[float]) -> np.ndarray:
    """Return the decimal logarithms, each as `math.log10` has it.

    numpy's differ from it in the last bit, and on another processor otherwise: then the best rate
    of a ladder is not among its rates, and the same data give another model.
    """
    return np.array([math.log10(rate) for rate in rates])


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeLadder:
    """One model and recipe at several rates; or one run, which bounds the edge from one side.

    Rates are decimal logarithms of the highest rate that a run reaches.

    Attributes:
        source: Whose runs these are; sources are left out whole.
        group: What is left out inside a source: the family in the lab, the repository's group.
        task: What the lab's models learn; "" elsewhere.
        shape: Model shapes with one name are left out together.
        low, high: The edge lies between; -inf and inf where a side is open.
        best: The rate of the lowest final loss; None for a single run.
        rates, excess: Of every run, `[runs]`: nats above the best, at most `cap`.
        diverged: Which of them diverged, and did not just end on a bad plateau; None if not known.
        measured: Features at rate 1; empty where nothing was measured.
        changed: For a single run, the setting that it changes; else "".
        seed: Of the lab's models; 0 elsewhere.
        block: The design that several sources share, such as a course's; "" where none.
        team: Whose ladders may inform one another: the repository, of which a source, such as a
            course, may have several; "" where that is the source.
    """

    name: str
    source: str
    group: str
    shape: str
    inputs: EdgeInputs
    low: float
    high: float
    best: float | None
    rates: np.ndarray
    excess: np.ndarray
    failed: np.ndarray
    diverged: np.ndarray | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    changed: str = ""
    task: str = ""
    seed: int = 0
    block: str = ""
    team: str = ""

    @classmethod
    def of_one_run(cls, rate: float, failed: bool, excess: float, **rest: Any) -> EdgeLadder:
        """Return a run, whose rate bounds the edge from one side; `rest` are the other fields."""
        return cls(
            **rest,
            low=-math.inf if failed else rate,
            high=rate if failed else math.inf,
            best=None,
            rates=np.array([rate]),
            excess=np.array([excess]),
            failed=np.array([failed]),
        )

    @property
    def has_edge(self) -> bool:
        """Whether the edge is known from both sides."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def edge(self) -> float:
        """The geometric middle of the edge, as a logarithm."""
        return (self.low + self.high) / 2

    @property
    def divergence(self) -> tuple[float, float]:
        """Between which rates, as logarithms, its runs begin to diverge.

        Open above where none does, or where it is not known how a run failed.
        """
        if self.diverged is None or self.best is None or not self.diverged.any():
            last = self.low if self.best is None else float(self.rates[-1])
            return (self.low if self.diverged is None else last), math.inf
        first = int(np.argmax(self.diverged))
        return float(self.rates[first - 1]) if first else -math.inf, float(self.rates[first])

    def excess_at(self, log_rate: float | np.ndarray) -> float | np.ndarray:
        """Return nats lost at a rate, linear between the runs and constant beyond them."""
        return np.interp(log_rate, self.rates, self.excess)


def bracket(
    rates: Sequence[float] | np.ndarray, losses: np.ndarray, diverged: np.ndarray
) -> tuple[float, float, int, np.ndarray]:
    """Find the edge of a ladder from its final losses.

    Args:
        rates: Ascending, `[runs]`.
        losses: Final losses in nats, NaN where there is none, `[runs]`.
        diverged: `[runs]` bool.

    Returns:
        log10 of the last rate that passes from the best one up and of the first that fails (inf
        if none), the index of the best, and which runs failed, `[runs]`.
    """
    usable = np.where(diverged | ~np.isfinite(losses), np.inf, losses)
    best = int(np.argmin(usable))
    failed = (usable > usable[best] + MARGIN) & (np.arange(len(rates)) > best)
    first = int(np.argmax(failed)) if failed.any() else len(rates)
    high = math.log10(rates[first]) if failed.any() else math.inf
    return math.log10(rates[first - 1]), high, best, failed
