"""Pairs that differ in the model alone: what the table says of shifts that are known."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from support.edge_cases import SLOPE, ladder, ladders

from lab.fit.edge_left_out import pair_table

SEEDS = 3
FACTORS = {"wider": 4, "narrower": 0.25, "much_wider": 16}


def _table(sign: float = 1.0, noise: float = 0.0) -> str:
    """Return the table of three models of another width each, whose edge follows it or flees it."""
    rng = np.random.default_rng(0)
    made, pairs = ladders(noise=0.02), []
    for model, width in (("a", 128), ("b", 256), ("c", 64)):
        for lever, factor in FACTORS.items():
            for seed in range(SEEDS):
                names = [f"{model}{lever}{seed}{end}" for end in ("plain", "changed")]
                for name, by in zip(names, (1, factor), strict=True):
                    moved = sign * SLOPE * np.log10(by) + noise * rng.normal()
                    edge = min(0.9, 1 + SLOPE * np.log10(width) + moved)
                    one = ladder(0, edge, width=int(width * by), family="")
                    made.append(dataclasses.replace(one, name=name))
                pairs.append((model, lever, *names))
    return pair_table(made, pairs)


def _correlations(text: str) -> tuple[float, float]:
    """Return the rank correlation over the means of seeds, and over single pairs."""
    found = re.search(r"correlation (\S+) over 9 changes .* and (\S+) over the 27 pairs", text)
    return float(found[1]), float(found[2])


def test_a_shift_that_the_columns_hold_is_said_and_ranked():
    text = _table()
    for lever, factor in FACTORS.items():
        row = re.search(rf"\| {lever} \| 3 \| 9 \| (\S+) \| (\S+) \|", text)
        moved, said = map(float, row.groups())
        assert moved == pytest.approx(SLOPE * np.log10(factor), abs=0.3)
        assert said == pytest.approx(SLOPE * np.log10(factor), abs=0.15)
    assert min(_correlations(text)) > 0.7


def test_the_opposite_shift_is_ranked_the_other_way_round():
    assert max(_correlations(_table(sign=-1.0))) < -0.7


def test_the_mean_of_seeds_ranks_better_than_one_seed():
    means, single = _correlations(_table(noise=0.8))
    assert means > single


def test_too_few_pairs_have_no_table():
    one, other = ladder(0, -2.0), ladder(1, -1.5)
    assert pair_table([one, other, *ladders()], [("a", "wider", one.name, other.name)]) == ""
