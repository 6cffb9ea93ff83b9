"""Published and measured peak learning rates by optimizer, the reference of the checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Family = Literal["adaptive", "sign", "orthogonal", "layerwise", "plain"]

_REFERENCE_RATE = 6e-4  # Brown et al., 2020, Table 2.1: 125M parameters
_REFERENCE_SIZE = 125e6
_SLOPE = -0.32  # of log rate on log size, from 125M at 6e-4 to 175B at 0.6e-4
# Step Law (arXiv 2503.04715), our fit of the edge to 61 of its ladders: logarithms of the
# intercept, the slope on non-embedding parameters and the slope on tokens a step.
_EDGE, _EDGE_ON_SIZE, _EDGE_ON_TOKENS = 1.52, -0.39, -0.02
_SWEPT_SIZE = 134e6  # non-embedding parameters of the Marin sweep's smallest models


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRange:
    """Known peak learning rates of one optimizer.

    Attributes:
        family: The kind of its update. `sign`: all entries have the same size;
            `orthogonal`: all singular values have; `layerwise`: scaled to the layer's norm.
        passing: Highest rate that trained in the Marin sweep at 130M, with its base recipe.
        failing: Lowest rate that failed in it, in at least half of the runs; None if none did.
        over_adamw: Largest ratio of published peak rates to AdamW's for the same model; None if the
            rates are not comparable.
        source: Where the numbers come from.
        needs_warmup: False if runs without warm-up succeeded: T5 and PaLM had none with Adafactor.
    """

    family: Family
    passing: float | None
    failing: float | None
    over_adamw: float | None
    source: str
    needs_warmup: bool = True


_SWEEP = "the Marin optimizer sweep at 130M (arXiv 2509.02046)"

RATES: dict[str, RateRange] = {
    "adamw": RateRange(
        family="adaptive", passing=0.016, failing=0.032, over_adamw=1.0, source=_SWEEP
    ),
    "nadamw": RateRange(
        family="adaptive", passing=0.016, failing=0.032, over_adamw=1.0, source=_SWEEP
    ),
    "cautious": RateRange(
        family="adaptive", passing=0.016, failing=0.032, over_adamw=1.0, source=_SWEEP
    ),
    "mars": RateRange(
        family="adaptive", passing=0.016, failing=0.032, over_adamw=2.0, source=_SWEEP
    ),
    "sophia": RateRange(
        family="adaptive", passing=0.008, failing=0.016, over_adamw=1.0, source=_SWEEP
    ),
    "soap": RateRange(
        family="adaptive",
        passing=0.016,
        failing=None,
        over_adamw=2.0,
        source=f"{_SWEEP}; Vyas et al., 2024 (arXiv 2409.11321)",
    ),
    "kron": RateRange(
        family="orthogonal",
        passing=0.002,
        failing=0.004,
        over_adamw=0.34,
        source=_SWEEP,
    ),
    "lion": RateRange(
        family="sign",
        passing=0.002,
        failing=0.004,
        over_adamw=0.34,
        source=f"Chen et al., 2023 (arXiv 2302.06675): 3 to 10 times below AdamW's; {_SWEEP}",
    ),
    "muon": RateRange(
        family="orthogonal",
        passing=0.064,
        failing=0.128,
        over_adamw=None,
        source=f"{_SWEEP}; Jordan et al., 2024: 0.02",
        needs_warmup=False,
    ),
    "scion": RateRange(
        family="orthogonal",
        passing=0.032,
        failing=0.064,
        over_adamw=None,
        source=_SWEEP,
        needs_warmup=False,
    ),
    "lamb": RateRange(
        family="layerwise",
        passing=None,
        failing=None,
        over_adamw=12.0,
        source="You et al., 2020 (arXiv 1904.00962): 5e-3 for BERT-large at 32k sequences",
    ),
    "adafactor": RateRange(
        family="adaptive",
        passing=None,
        failing=None,
        over_adamw=None,
        source="Raffel et al., 2020, and PaLM: 1e-2 times the weights' size, then 1/√t",
        needs_warmup=False,
    ),
    "sgd": RateRange(
        family="plain",
        passing=None,
        failing=None,
        over_adamw=None,
        source="none that is common",
        needs_warmup=False,
    ),
}
# The classifier's labelled runs hold these; of the others it says nothing.
MEASURED_OPTIMIZERS = frozenset({"adamw", "sgd", "lion", "adafactor", "muon"})


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
    known = RATES.get(optimizer)
    if known is None or known.passing is None or known.failing is None:
        return None
    middle = math.sqrt(known.passing * known.failing)
    return middle * (block_parameters / _SWEPT_SIZE) ** _EDGE_ON_SIZE
