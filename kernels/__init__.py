"""Kernels: an operation a file, a plain torch reference in each, Triton where it pays.

    covariance          centered covariance and cross-covariance of snapshot pairs
    newton_schulz       symmetric products and the polar factor (Polar Express)
    power_iteration     top singular triplets of many weights, warm-started
    row_cosine          cosines of rows with vectors: signs, moments, histogram
    router_statistics   entropy, load and importance of a router
    normal_fill         counter-based random fills, the same on any device and in any order
    dispatch            which of the two runs, and why

The modules load on first use, so this file costs nothing and cannot fail: from the root of the
repository it answers to the bare name `kernels`, which other packages import if they find it.
"""

from __future__ import annotations

import importlib

_MODULES = (
    "covariance",
    "dispatch",
    "newton_schulz",
    "normal_fill",
    "power_iteration",
    "programs",
    "router_statistics",
    "row_cosine",
)

__all__ = [name for name in _MODULES if name != "programs"]


def __getattr__(name: str):
    if name in _MODULES and __name__ == "rksp.kernels":
        return importlib.import_module(f"rksp.kernels.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
