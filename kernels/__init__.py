"""Provide numerical kernels: one operation per file, in plain torch and in Triton.

    newton_schulz       symmetric products and the polar factor (Polar Express)
    power_iteration     top singular triplets of many weights, warm-started
    row_cosine          cosines of rows with vectors: signs, moments, histogram
    router_statistics   entropy, load and importance of a router
    normal_fill         counter-based random fills, the same on any device and in any order
    cross_entropy       of many logits, some rows at a time (plain torch alone)
    wide_output         a product that is made only when it is read (plain torch alone)
    dispatch            the choice between the two implementations, and its reason

The modules load on first use, so this file costs nothing and cannot fail.
"""

from __future__ import annotations

import importlib

_MODULES = (
    "cross_entropy",
    "dispatch",
    "newton_schulz",
    "normal_fill",
    "power_iteration",
    "programs",
    "router_statistics",
    "row_cosine",
    "wide_output",
)

__all__ = [name for name in _MODULES if name != "programs"]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"rksp.kernels.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])


if __name__ == "kernels":  # imported in the root of the checkout: Hugging Face's is meant
    from rksp.ground.giving_way import give_way

    give_way(__name__)
