"""A run as its tracker wrote it down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rksp.ground.budgets import LOGGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Logged values of one metric: `steps` ascending, `values` float64, both `[points]`."""

    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Curve:
        """Return the curve of values by step."""
        steps = sorted(points)
        return cls(
            steps=np.array(steps, dtype=np.int64),
            values=np.array([points[step] for step in steps], dtype=np.float64),
        )


class Points:
    """What was logged, by metric and step, while a reader collects it."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, float]] = {}
        self._count = 0

    def add(self, step: object, values: Mapping[str, object]) -> None:
        """Keep the numbers among the values of one step; nothing where that is no step."""
        at = step_of(step)
        for name, value in values.items():
            known = number_of(value)
            if at is not None and known is not None:
                self._found.setdefault(name, {})[at] = known
                self._count += 1
        LOGGED.check(self._count, "A run")

    def curves(self) -> dict[str, Curve]:
        """Return the curve of each metric."""
        return {name: Curve.of(points) for name, points in self._found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """One run.

    Attributes:
        name: Its tracker's name of it.
        file: Where it was read.
        said: What was set, by the names of its tracker.
        finals: The last value of each metric.
        curves: Of each metric that was logged over steps.
        state: How it ended, in its tracker's word; empty if that is not known.
        outcome: Its label where rksp itself has made it.
    """

    name: str
    file: Path
    said: Mapping[str, object]
    finals: Mapping[str, object] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    state: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReader:
    """One format of past runs.

    Attributes:
        matches: Tells whether a file is of this format, from its name and beginning.
        read: Yields its runs.
    """

    matches: Callable[[Path], bool]
    read: Callable[[Path], Iterator[RawRun]]


def step_of(value: object) -> int | None:
    """Return the number of a step; None for what is none."""
    found = number_of(value)
    return int(found) if found is not None and 0 <= found < 2**53 else None


def number_of(value: Any) -> float | None:
    """Return a number; None for all else, and for text but that of what is not finite (`nan`)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
    return None if isinstance(value, str) and math.isfinite(found) else found
