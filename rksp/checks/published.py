"""Published and measured peak learning rates by size, the reference of the checks."""

from __future__ import annotations

import math

from rksp.optimizers.table import optimizer_spec

_REFERENCE_RATE = 6e-4  # Brown et al., 2020, Table 2.1: 125M parameters
_REFERENCE_SIZE = 125e6
_SLOPE = -0.32  # of log rate on log size, from 125M at 6e-4 to 175B at 0.6e-4
# Step Law (arXiv 2503.04715), our fit of the edge to 61 of its ladders: logarithms of the
# intercept, the slope on non-embedding parameters and the slope on tokens a step.
_EDGE, _EDGE_ON_SIZE, _EDGE_ON_TOKENS = 1.52, -0.39, -0.02
_SWEPT_SIZE = 134e6  # non-embedding parameters of the Marin sweep's smallest models


def published_rate(parameters: float) -> float:
    """Return AdamW's peak learning rate in GPT-3's recipe for a model of this size."""
    return _REFERENCE_RATE * (parameters / _REFERENCE_SIZE) ** _SLOPE


def runs_edge(block_parameters: float, tokens: float) -> float:
    """Return AdamW's edge, a learning rate, in public ladders for pre-norm models.

    Args:
        block_parameters: Number of non-embedding parameters.
        tokens: Tokens per optimizer step.
    """
    return 10 ** (
        _EDGE + _EDGE_ON_SIZE * math.log10(block_parameters) + _EDGE_ON_TOKENS * math.log10(tokens)
    )


def swept_edge(optimizer: str, block_parameters: float) -> float | None:
    """Return an optimizer's edge in the Marin sweep, extrapolated in size as AdamW's edge is.

    It is the geometric mean of the last passing and the first failing rate; None without failures.
    """
    known = optimizer_spec(optimizer).rates
    if known.passing is None or known.failing is None:
        return None
    middle = math.sqrt(known.passing * known.failing)
    return middle * (block_parameters / _SWEPT_SIZE) ** _EDGE_ON_SIZE
