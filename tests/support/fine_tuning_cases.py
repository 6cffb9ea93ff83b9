"""Ladders of fine-tuning whose best rates and edges are known."""

from __future__ import annotations

import math

import numpy as np

from lab.fine_tuning_fit.ladder import FineTuningLadder, ladder_of_runs
from rksp.classifiers.fine_tuning.inputs import FineTuningInputs

BEST = {"lora": -3.2, "dora": -3.6, "full": -4.9}  # log10 of the best rate, full at 7 billion
GAP = 0.8  # decades from the best rate to the edge
SLOPE = -0.4  # of all weights, a decade of parameters
SOURCES = ("east", "west", "north", "south")


def inputs(method: str = "lora", **more: object) -> FineTuningInputs:
    given = {"family": "llama", "parameters": 7e9, "rank": 16.0} | more
    return FineTuningInputs(method=method, **given)


def ladder(
    given: FineTuningInputs, best: float, edge: float, *, step: float = 0.25, name: str = "ladder"
) -> FineTuningLadder:
    """Make a ladder around a best rate: the loss rises by a parabola, and runs fail at the edge."""
    rates = np.arange(best - 1.5, edge + 0.6, step)
    runs = [
        (float(rate), None if rate > edge else 1 + 0.1 * (rate - best) ** 2, bool(rate > edge))
        for rate in rates
    ]
    return ladder_of_runs(name, given, runs)


def ladders(count: int = 120, noise: float = 0.1, seed: int = 0) -> list[FineTuningLadder]:
    """Make ladders of three methods in four sources, each with an offset of its own."""
    rng = np.random.default_rng(seed)
    offsets = {source: 0.1 * rng.standard_normal() for source in SOURCES}
    found = []
    for number in range(count):
        method = tuple(BEST)[number % 3]
        size = 10 ** rng.uniform(8.5, 11)
        source = SOURCES[number // 3 % 4]
        slope = SLOPE * math.log10(size / 7e9) if method == "full" else 0.0
        best = BEST[method] + slope + offsets[source] + noise * rng.standard_normal()
        given = inputs(method, parameters=size, source=source, model=f"model-{number}")
        found.append(ladder(given, best, best + GAP, name=f"{source}-{number:03d}"))
    return found
