"""The toys of preferences and rewards: the edge of a planted ladder, and what is stored."""

from __future__ import annotations

from lab.post_training import RATES, PolicyLadder, Spec, Trained, stored_ladders, tables


def planted(*found, before=0.5):
    spec = Spec(objective="grpo", toy="digits", family="gpt2", beta=0.0, group=4, seed=0)
    runs = [
        Trained(rate=10.0**place, reward=reward, divergence=0.1, seconds=0)
        for place, reward in enumerate(found)
    ]
    return PolicyLadder(spec=spec, before=before, runs=tuple(runs))


def test_the_edge_of_a_planted_ladder():
    ladder = planted(0.55, 0.6, 0.9, 0.8, 0.69, 0.6, None, None)
    assert (ladder.best.rate, ladder.edge) == (1e2, 1e4)
    assert planted(0.55, 0.6, 0.9, 0.8, 0.71, 0.71, 0.71, None).edge == 1e7
    assert planted(*[0.6] * RATES).edge is None


def test_what_is_stored_are_whole_ladders_each_once():
    stored = stored_ladders()
    assert len({ladder.spec for ladder in stored}) == len(stored) >= 120
    assert all(len(ladder.runs) == RATES for ladder in stored)
    assert f"{len(stored)} ladders" in tables(stored)
