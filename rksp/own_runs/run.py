"""A run as its tracker wrote it down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Logged values of one metric: `steps` ascending, `values`, both float64 `[points]`."""

    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, points: Mapping[float, float]) -> Curve:
        """Return the curve of values by step."""
        steps = sorted(points)
        return cls(
            steps=np.array(steps, dtype=np.float64),
            values=np.array([points[step] for step in steps], dtype=np.float64),
        )


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


def number_of(value: object) -> float | None:
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
