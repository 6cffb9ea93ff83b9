"""KSS at four times the batch: the penalty samples as many tokens, and so costs a quarter as much.

The setting of `rksp.confirm.experiments.kss` with 8,192 tokens a step instead of 2,048, four seeds
a rate, the baseline and the default form.
"""

from __future__ import annotations

from collections.abc import Sequence

from rksp.confirm.experiments.kss import ENERGY, RATES, make_trial
from rksp.confirm.experiments.plan import Trial
from rksp.confirm.experiments.rows import Row, divergence_table

BATCH = 128
SEEDS = range(4)


def plan() -> list[Trial]:
    """All trials, both arms at one seed before the next seed."""
    return [
        make_trial(arm, rate, seed, batch_size=BATCH)
        for seed in SEEDS
        for rate in RATES
        for arm in ("baseline", ENERGY)
    ]


def table(rows: Sequence[Row]) -> str:
    """Divergence of both arms, as Markdown."""
    return divergence_table(rows, {})
