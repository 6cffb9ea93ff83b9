"""What chance leaves: experiments of known noise, and the shipped ladders that were repeated."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from support.edge_cases import ladder

from lab.fit.edge_ceiling import Chance, ceiling_table
from lab.ladders.edge_ladders import repeated_ladders


def test_the_spread_of_one_result_is_found_from_sets_of_any_size():
    rng = np.random.default_rng(0)
    sets = [rng.normal(rng.normal(0, 3), 0.2, rng.integers(1, 5)) for _ in range(2000)]
    chance = Chance.of(sets)
    assert chance.deviation == pytest.approx(0.2, rel=0.05)
    assert chance.sets == sum(len(values) > 1 for values in sets) < 2000


def _numbers(noise: float) -> list[float]:
    """Return the printed numbers for 60 experiments of three seeds, whose shifts spread by 0.5."""
    rng = np.random.default_rng(1)
    made, repeats, pairs = [], [], []
    for experiment in range(60):
        edge, moved = rng.normal(-2.5, 0.4), rng.normal(0, 0.5)
        for name, true in (("plain", edge), ("changed", edge + moved)):
            repeats.append([f"{experiment}{name}{seed}" for seed in range(3)])
            for one in repeats[-1]:
                at = true + rng.normal(0, noise)
                edged = dataclasses.replace(ladder(0, at), low=at - 0.05, high=at + 0.05)
                made.append(dataclasses.replace(edged, name=one))
        names = zip(*repeats[-2:], strict=True)
        pairs += [("model", f"{experiment}", plain, changed) for plain, changed in names]
    text = ceiling_table(made, made, repeats, pairs)
    return [float(x) for x in re.findall(r"\d+(?:\.\d+)?", text.split("\n\n")[1])]


def test_no_noise_leaves_nothing_to_miss_and_noise_bounds_every_score():
    sets, deviation, missed, area, pair, count, every, most = _numbers(1e-6)
    assert (sets, count) == (120, 60) and deviation == missed == pair == 0
    assert area > 0.99 and most == 1 and every == pytest.approx(0.5, rel=0.2)
    _, deviation, missed, noisy, pair, _, every, most = _numbers(0.3)
    assert deviation == pytest.approx(0.3, rel=0.1) and missed == pytest.approx(0.2, rel=0.2)
    assert noisy < area - 0.002 and pair == pytest.approx(0.3 * 2**0.5, rel=0.1)
    assert most == pytest.approx((0.25 / (0.25 + 0.18)) ** 0.5, rel=0.1)


def test_without_a_repeated_experiment_nothing_is_said():
    one = ladder(0, -2.5)
    assert ceiling_table([one], [one], [[one.name]], []) == ""


def test_repeated_ladders_of_the_lab_are_told_by_their_specification():
    repeated = repeated_ladders()
    assert len(repeated) >= 30
    assert all(len(set(names)) == len(names) > 1 for names in repeated)
