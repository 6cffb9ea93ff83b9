"""Ladders with a known edge, to test the edge model."""

from __future__ import annotations

import numpy as np

from lab.fit.edge_ladder import LAB, EdgeLadder
from rksp.classifiers.edge_inputs import EdgeInputs

SLOPE = -1.0  # of log10 of the edge in log10 of the width
GAP = 0.6  # decades from the best rate to the edge


def inputs(width: int = 256, **more: object) -> EdgeInputs:
    given = {"depth": 4, "vocabulary": 512, "sequence_length": 64, "batch_tokens": 4096.0}
    given |= {"steps": 200, "warmup_steps": 20}
    return EdgeInputs(width=width, **given | more)


def ladder(number: int, edge: float, *, source: str = LAB, **more: object) -> EdgeLadder:
    """Make a ladder with two rates a decade; failed runs lose 2 nats, slow ones 0.2 a decade."""
    group = more.pop("group", f"family-{number % 4}")
    rates = np.arange(-5, 1.01, 0.5) + 0.01 * (number % 7)
    failed = rates > edge
    excess = np.where(failed, 2.0, 0.2 * np.abs(rates - (edge - GAP)))
    return EdgeLadder(
        name=f"{source}-{number:03d}",
        source=source,
        group=group,
        task=f"task-{number % 3}",
        shape=f"shape-{number % 5}",
        inputs=inputs(**{"family": group} | more),
        low=float(rates[~failed].max()),
        high=float(rates[failed].min()),
        best=edge - GAP,
        rates=rates,
        excess=excess - excess.min(),
        failed=failed,
        diverged=failed,
        seed=number,
    )


def ladders(count: int = 60, noise: float = 0.1) -> list[EdgeLadder]:
    """Make ladders of widths 32 to 2048 with log10 edge = 1 - log10 width + noise."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        width = int(2 ** rng.integers(5, 12))
        edge = 1 + SLOPE * np.log10(width) + noise * rng.standard_normal()
        found.append(ladder(number, float(edge), width=width))
    return found
