"""Profiles over training: spectra and ranks of the whole model, from initialization on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rksp.documents.confirm import PROFILED, Curve

if TYPE_CHECKING:  # torch, which the page of a stored report does not need
    from rksp.watch.monitors.base import Reading


def profile_curves(readings: Sequence[Reading]) -> dict[str, Curve]:
    """Return (step, value) of every quantity of `PROFILED` that was read, in the order of steps.

    Of the windows of `qk_delta2_rank` it takes the shortest. Values that are not finite are left
    out.
    """
    windows = [int(r.quantity.rpartition("_")[2]) for r in readings if _is_window(r.quantity)]
    shortest = f"qk_delta2_rank_{min(windows, default=0)}"
    found: dict[str, dict[int, list[float]]] = {}
    for reading in readings:
        name = "qk_delta2_rank" if reading.quantity == shortest else reading.quantity
        is_mean = name == "near_unit_mass" and reading.layer
        if name in PROFILED and not is_mean and math.isfinite(reading.value):
            found.setdefault(name, {}).setdefault(reading.step, []).append(reading.value)
    return {
        name: [(step, _mean(name, values)) for step, values in sorted(found[name].items())]
        for name in PROFILED
        if name in found
    }


def _is_window(quantity: str) -> bool:
    stem, _, window = quantity.rpartition("_")
    return stem == "qk_delta2_rank" and window.isdigit()


def _mean(name: str, values: Sequence[float]) -> float:
    is_geometric = name == "stable_rank" and min(values) > 0
    return statistics.geometric_mean(values) if is_geometric else statistics.fmean(values)
